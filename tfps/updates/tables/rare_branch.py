"""A branch that is seldom taken, and whose graph all its uses share."""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf


class RareBranch:
  """Branch of functions, in which it is one operation.

  `tf.cond` traces its branches for each use, and TensorFlow makes their
  operations part of the function around it: twenty look-ups took seconds to
  trace and to place. This is traced once, and placed when it is first taken.

  It runs on one device, that of the operation.

  Args:
    function: what the branch computes of an int64 tensor of shape [n]: another
      one.
  """

  def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    self._function = function

  def __call__(
    self, is_taken: tf.Tensor, inputs: tf.Tensor, otherwise: tf.Tensor
  ) -> tf.Tensor:
    """Returns the branch's result if it is taken, else another tensor.

    Args:
      is_taken: bool scalar.
      inputs: of the branch.
      otherwise: int64 tensor of shape [n].
    """
    then, orelse = self._branches
    (result,) = tf.raw_ops.If(
      cond=is_taken,
      input=[inputs, otherwise, *then.captured_inputs],
      Tout=[tf.int64],
      then_branch=then,
      else_branch=orelse,
      output_shapes=[tf.TensorShape([None])],
    )
    return result

  @functools.cached_property
  def _branches(self) -> tuple[Any, Any]:
    """Concrete functions, which have the same inputs and captures."""
    numbers = tf.TensorSpec([None], tf.int64)

    @tf.function(autograph=False, input_signature=[numbers, numbers])
    def then(inputs: tf.Tensor, otherwise: tf.Tensor) -> tf.Tensor:
      del otherwise
      return self._function(inputs)

    with tf.init_scope():
      concrete = then.get_concrete_function()
    captures = [
      tf.TensorSpec(captured.shape, captured.dtype)
      for captured in concrete.captured_inputs
    ]

    @tf.function(autograph=False, input_signature=[numbers, numbers, *captures])
    def orelse(
      inputs: tf.Tensor, otherwise: tf.Tensor, *captured: tf.Tensor
    ) -> tf.Tensor:
      del inputs, captured
      return tf.identity(otherwise)

    with tf.init_scope():
      return concrete, orelse.get_concrete_function()
