"""Additions to rows of variables on ps that lose nothing beside others.

`ResourceScatterAdd` holds its variable's lock as a reader, so that two of them
may add to the same element at once, and one is lost. `ResourceScatterNdAdd`
holds it as a writer.
"""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

_Variable: Any = resource_variable_ops.BaseResourceVariable


@functools.cache
def take_part() -> None:
  """Makes `scatter_add` and `scatter_sub` of variables on ps atomic."""
  for name in ('scatter_add', 'scatter_sub'):
    setattr(_Variable, name, _atomic(name))


def _atomic(name: str) -> Callable[..., Any]:
  theirs = getattr(_Variable, name)
  by_index = getattr(_Variable, name.replace('scatter', 'scatter_nd'))

  # Outside of functions, TensorFlow takes a remote variable for a scalar.
  @tf.function(reduce_retracing=True, autograph=False)
  def scatter_in_function(variable: Any, *args: tf.Tensor) -> None:
    by_index(variable, *args)

  @functools.wraps(theirs)
  def scatter(self: Any, sparse_delta: Any, *args: Any, **kwargs: Any) -> Any:
    is_sparse = isinstance(sparse_delta, tf.IndexedSlices)
    if not is_sparse or not _is_on_ps(self.handle):
      return theirs(self, sparse_delta, *args, **kwargs)
    indices = tf.convert_to_tensor(sparse_delta.indices)
    values = tf.convert_to_tensor(sparse_delta.values, self.dtype)
    if values.shape.rank == 0:  # for all rows
      shape = tf.concat([tf.shape(indices), self.shape[1:]], axis=0)
      values = tf.broadcast_to(values, shape)
    args = indices[..., tf.newaxis], values
    if not tf.executing_eagerly():
      return by_index(self, *args)
    scatter_in_function(self, *args)
    return self

  return scatter


def _is_on_ps(handle: tf.Tensor) -> bool:
  job: str | None = tf.DeviceSpec.from_string(handle.device).job
  return job == 'ps'
