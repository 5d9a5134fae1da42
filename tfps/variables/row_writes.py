"""Writes of rows to variables on ps, in slices of limited size.

A value that is sent in one piece exists several times in the sender's memory,
and cannot be larger than a message, which has at most 2 GB.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import handles
from tfps._compat import survivors
from tfps.variables import sharded

SLICE_BYTES = 8 << 20


class RowWriter:
  """Writes rows of a variable, whole or sharded, which has a value.

  Each call returns once the rows are written, so that no more than one slice is
  under way. Replicas of the variable get the same.

  Args:
    variable: a `tf.Variable` or `ShardedVariable` with at least one axis.
  """

  def __init__(self, variable: Any) -> None:
    shards = shards_of(variable)
    firsts = np.cumsum([0, *(shard.shape[0] for shard in shards)])
    self._shards = list(zip(shards, firsts[:-1], firsts[1:], strict=True))
    self._functions: dict[tuple[int, Any], Any] = {}

  def write(self, first: int, rows: np.ndarray) -> None:
    """Writes consecutive rows.

    Args:
      first: number of the first of them.
      rows: their values.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    last = first + len(rows)
    for i, (_, begin, end) in enumerate(self._shards):
      low, high = max(first, begin), min(last, end)
      if low < high:
        own = rows[low - first : high - first]
        self._call(i, _assign_rows, low - begin, own)

  def scatter(self, indices: np.ndarray, rows: np.ndarray) -> None:
    """Writes rows with given numbers.

    Args:
      indices: int64 of shape [number of rows].
      rows: their values.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    for i, (_, begin, end) in enumerate(self._shards):
      is_own = (indices >= begin) & (indices < end)
      if is_own.any():
        self._call(i, _scatter_rows, indices[is_own] - begin, rows[is_own])

  def _call(self, shard: int, update: Any, where: Any, rows: Any) -> None:
    variable = self._shards[shard][0]
    function = self._functions.get((shard, update))
    if function is None:
      function = _function(variable, update, np.ndim(where))
      self._functions[shard, update] = function
    values = tf.constant(rows, variable.dtype)
    function(tf.constant(where, tf.int64), values).numpy()


def assign(variable: Any, value: np.ndarray) -> None:
  """Assigns a small value, which is not repeated if a ps is lost.

  Errors may come with a later operation.

  Args:
    variable: a `tf.Variable` or `ShardedVariable`.
    value: its value.
  """
  first = 0
  for shard in shards_of(variable):
    own = value
    if isinstance(variable, sharded.ShardedVariable):
      own = value[first : first + shard.shape[0]]
      first += shard.shape[0]
    survivors.assign_once(shard, own)


def shards_of(variable: Any) -> Sequence[Any]:
  """Returns the shards of a variable; itself if it has none."""
  is_sharded = isinstance(variable, sharded.ShardedVariable)
  return variable.variables if is_sharded else [variable]


def send(value: Any, dtype: tf.DType) -> tf.Tensor:
  """Returns a large value as a tensor on the current device, which is remote.

  Args:
    value: an array, or a tensor of this process; it has at least one axis.
    dtype: dtype of the result.

  Raises:
    tf.errors.OpError: the device is lost.
  """
  scratch = handles.scratch(value.shape, dtype)
  scratch.assign(tf.zeros(value.shape, dtype))
  write = _sending_function(dtype, tuple(value.shape[1:]))
  num_bytes = math.prod(value.shape) * dtype.size
  for rows in row_slices(value.shape[0], num_bytes, SLICE_BYTES):
    with tf.device('/device:CPU:0'):  # of this process
      first, part = (
        tf.constant(rows.start, tf.int64),
        tf.cast(value[rows], dtype),
      )
    with tf.device(None):
      write(scratch.handle, first, part).numpy()
  return scratch.read_value()


@functools.cache
def _sending_function(dtype: tf.DType, row_shape: tuple[int, ...]) -> Any:
  def write(handle: tf.Tensor, first: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    _assign_rows(handle, first, rows)
    return tf.constant(True)

  # It captures no variable, so that nothing keeps the memory.
  return tf.function(
    write,
    input_signature=[
      tf.TensorSpec([], tf.resource),
      tf.TensorSpec([], tf.int64),
      tf.TensorSpec([None, *row_shape], dtype),
    ],
    autograph=False,
  )


def row_slices(
  num_rows: int, num_bytes: int, max_bytes: int
) -> Iterator[slice]:
  """Yields slices of rows of at most a size; at least one row each.

  Args:
    num_rows: number of rows.
    num_bytes: size of all.
    max_bytes: size of a slice.
  """
  step = max(1, max_bytes * num_rows // max(1, num_bytes))
  for first in range(0, num_rows, step):
    yield slice(first, min(first + step, num_rows))


def _function(
  variable: Any, update: Callable[..., None], indices_rank: int
) -> Any:
  def write(where: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    update(variable.handle, where, rows)
    # With its result a caller waits for the write, and gets its error.
    return tf.constant(True)

  signature = [
    tf.TensorSpec([None] * indices_rank, tf.int64),
    tf.TensorSpec([None, *variable.shape[1:]], variable.dtype),
  ]
  # Without autograph, which is not safe while another thread traces.
  function = tf.function(write, input_signature=signature, autograph=False)
  return function.get_concrete_function()


def _assign_rows(handle: tf.Tensor, first: tf.Tensor, rows: tf.Tensor) -> None:
  end = first + tf.shape(rows, tf.int64)[0]
  # Unlike a scatter, it does not have later reads copy the variable.
  tf.raw_ops.ResourceStridedSliceAssign(
    ref=handle,
    begin=first[tf.newaxis],
    end=end[tf.newaxis],
    strides=tf.ones([1], tf.int64),
    value=rows,
  )


def _scatter_rows(
  handle: tf.Tensor, indices: tf.Tensor, rows: tf.Tensor
) -> None:
  tf.raw_ops.ResourceScatterUpdate(
    resource=handle, indices=indices, updates=rows
  )
