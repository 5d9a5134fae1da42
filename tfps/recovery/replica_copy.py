"""Copies many variables to their twins, from ps to ps."""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps._compat import cancellation

# By which a coordinator tells that it is about a ps.
_FROM_PS = 'GRPC error information from remote target /job:ps'

Pair = tuple[Any, Any]


class ReplicaCopier:
  """Gives twins the values of their variables.

  One call has each ps send its values to the ps of their twins, which takes
  them over once all have come: after a loss in the middle, its twins are still
  all as they were. Nobody waits for it: a value shares the memory of its
  variable until that changes.
  """

  def __init__(self) -> None:
    cancellation.keep_apart()
    self._function: Any = None
    self._num_pairs = 0

  def copy(self, pairs: Sequence[Pair]) -> None:
    """Copies each variable to its twin.

    Args:
      pairs: of variables and twins; those of the last call, and maybe more.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if len(pairs) != self._num_pairs:
      self._function = _function(pairs)
      self._num_pairs = len(pairs)
    if pairs:
      try:
        # What it returns tells, as nothing else would, that all is done.
        tf.stack(self._function()).numpy()
      except tf.errors.CancelledError as error:
        # By nobody but the runtime, which may then not say what was lost.
        raise tf.errors.UnavailableError(
          None, None, f'{_FROM_PS}: {error.message}'
        ) from error


def _function(pairs: Sequence[Pair]) -> Any:
  by_route = collections.defaultdict(list)
  for variable, twin in pairs:
    by_route[variable.device, twin.device].append((variable, twin))

  def copy() -> list[tf.Tensor]:
    return [_copy(*route, own) for route, own in by_route.items()]

  # Not converted: this may be traced beside the training program.
  return tf.function(copy, autograph=False)


def _copy(source: str, target: str, pairs: Sequence[Pair]) -> tf.Tensor:
  with tf.device(source), tf.control_dependencies([_have_values(pairs)]):
    values = [variable.read_value() for variable, _ in pairs]
  with tf.device(target):
    values = tf.raw_ops.IdentityN(input=values)  # all of them have come
    written = [
      twin.assign(value, read_value=False)
      for (_, twin), value in zip(pairs, values, strict=True)
    ]
    with tf.control_dependencies(written):
      return tf.constant(True)


def _have_values(pairs: Sequence[Pair]) -> tf.Operation:
  """Fails unless all do; to be read takes no value."""
  ready = [
    tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    for variable, _ in pairs
  ]
  return tf.raw_ops.Assert(
    condition=tf.reduce_all(tf.stack(ready)), data=['A variable has no value.']
  )
