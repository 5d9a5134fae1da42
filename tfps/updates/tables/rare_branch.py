"""A branch that is seldom taken, and whose graph all its uses share."""

from collections.abc import Callable
from collections.abc import Sequence

import tensorflow as tf

from tfps._compat import handles as handles_lib


class RareBranch:
  """Branch of functions, in which it is one operation.

  `tf.cond` traces its branches for each use, and TensorFlow makes their
  operations part of the function around it: twenty look-ups took seconds to
  trace and to place. This is traced once, and placed when it is first taken.

  It runs on one device, that of the operation.

  Args:
    function: what the branch computes of handles and an int64 tensor of shape
      [n]: another one. It captures no tensors.
    handles: like those that the branch is used with, which have values of the
      same types and shapes.
  """

  def __init__(
    self,
    function: Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor],
    handles: Sequence[tf.Tensor],
  ) -> None:
    numbers = tf.TensorSpec([None], tf.int64)
    signature = [numbers, numbers]
    signature += [tf.TensorSpec([], tf.resource)] * len(handles)

    @tf.function(autograph=False, input_signature=signature)
    def then(
      inputs: tf.Tensor, otherwise: tf.Tensor, *given: tf.Tensor
    ) -> tf.Tensor:
      del otherwise
      for handle, like in zip(given, handles, strict=True):
        handles_lib.describe(handle, like)
      return function(given, inputs)

    @tf.function(autograph=False, input_signature=signature)
    def orelse(
      inputs: tf.Tensor, otherwise: tf.Tensor, *given: tf.Tensor
    ) -> tf.Tensor:
      del inputs, given
      return tf.identity(otherwise)

    with tf.init_scope():
      self._then = then.get_concrete_function()
      self._else = orelse.get_concrete_function()

  def __call__(
    self,
    is_taken: tf.Tensor,
    handles: Sequence[tf.Tensor],
    inputs: tf.Tensor,
    otherwise: tf.Tensor,
  ) -> tf.Tensor:
    """Returns the branch's result if it is taken, else another tensor.

    Args:
      is_taken: bool scalar.
      handles: of resources that the branch uses.
      inputs: of the branch.
      otherwise: int64 tensor of shape [n].
    """
    (result,) = tf.raw_ops.If(
      cond=is_taken,
      input=[inputs, otherwise, *handles],
      Tout=[tf.int64],
      then_branch=self._then,
      else_branch=self._else,
      output_shapes=[tf.TensorShape([None])],
    )
    return result
