"""Digests of rows, and comparisons of a variable's rows with them.

Functions run in a graph on the device of the variable, whose handle they get,
and that of the variable of digests: its shadow.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps.keras.serving import pieces as pieces_lib
from tfps.updates.tables import resources

# Bytes of rows that are compared at once.
_SLICE_BYTES = 16 << 20


class Found(NamedTuple):
  """Rows of a piece that have changed, as tensors on its device.

  Attributes:
    num_rows: how many it has.
    first_digest: the digest of its first row, of shape [1].
    rows: the numbers of those that have changed.
    values: their values, uint8 of shape [n, row_bytes].
    digests: their digests.
  """

  num_rows: Any
  first_digest: Any
  rows: Any
  values: Any
  digests: Any


def scan(
  handle: tf.Tensor,
  shadow: tf.Tensor,
  layout: pieces_lib.Layout,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Compares all rows of a variable, slice by slice.

  Returns:
    The numbers of the changed ones, and how many rows there are.
  """
  read = functools.partial(_read, handle, layout)
  num_rows = count_rows(handle, layout)
  first_digest = _digests(read(tf.zeros([1], tf.int64)))
  step = max(1, _SLICE_BYTES // layout.row_bytes)

  def compare(first: tf.Tensor, found: tf.Tensor) -> tuple[Any, Any]:
    rows = tf.range(first, tf.minimum(first + step, num_rows))
    digests = _digests(read(rows))
    has_changed = tf.not_equal(digests, _noted(shadow, rows, first_digest))
    more = first + where(has_changed)
    return first + step, tf.concat([found, more], axis=0)

  _, found = tf.while_loop(
    lambda first, _: first < num_rows,
    compare,
    [tf.constant(0, tf.int64), tf.zeros([0], tf.int64)],
    shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    parallel_iterations=1,
  )
  return found, num_rows


def changed(
  piece: pieces_lib.Piece, handle: tf.Tensor, shadow: tf.Tensor, rows: tf.Tensor
) -> Found:
  """Returns those of some rows of a piece that have changed."""
  read = functools.partial(_read, handle, piece.layout)
  values = read(rows)
  digests = _digests(values)
  first = _digests(read(tf.zeros([1], tf.int64)))
  at = where(tf.not_equal(digests, _noted(shadow, rows, first)))
  return Found(
    count_rows(handle, piece.layout),
    first,
    tf.gather(rows, at),
    _bytes(tf.gather(values, at), piece.row_bytes),
    tf.gather(digests, at),
  )


def note(
  shadow: tf.Tensor,
  num_rows: tf.Tensor,
  first_digest: tf.Tensor,
  rows: tf.Tensor,
  digests: tf.Tensor,
) -> tf.Tensor:
  """Notes the digests of rows; new rows not among them are like the first."""

  def resize() -> tf.Tensor:
    old = tf.raw_ops.ReadVariableOp(resource=shadow, dtype=tf.int64)
    old = tf.ensure_shape(old, [None])[:num_rows]
    added = tf.repeat(first_digest, num_rows - known)
    value = tf.cond(
      num_rows > known, lambda: tf.concat([old, added], 0), lambda: old
    )
    written = tf.raw_ops.AssignVariableOp(resource=shadow, value=value)
    with tf.control_dependencies([written]):
      return tf.constant(True)

  known = _count(shadow)
  resized = tf.cond(
    tf.not_equal(known, num_rows), resize, lambda: tf.constant(False)
  )
  with tf.control_dependencies([resized]):
    written = tf.raw_ops.ResourceScatterUpdate(
      resource=shadow, indices=rows, updates=digests
    )
  with tf.control_dependencies([written]):
    return tf.constant(True)


def digests_of(piece: pieces_lib.Piece, values: Any) -> np.ndarray:
  """Returns the digests of a piece's rows in the whole variable's values."""
  if piece.is_whole:
    shape = piece.variable.shape
    if shape.rank:
      values = values[piece.first : piece.first + shape[0]]
    return _digests(tf.reshape(values, [1, -1])).numpy()
  num_rows = piece.variable.shape[0]
  end = len(values) if num_rows is None else piece.first + num_rows
  step = max(1, _SLICE_BYTES // piece.row_bytes)
  width = math.prod(piece.row_shape)
  return np.concatenate(
    [
      _digests(
        tf.reshape(values[at : min(at + step, end)], [-1, width])
      ).numpy()
      for at in range(piece.first, end, step)
    ]
  )


def count_rows(handle: tf.Tensor, layout: pieces_lib.Layout) -> tf.Tensor:
  """Returns how many rows a variable has at present, an int64 scalar."""
  if layout.is_whole:
    return tf.constant(1, tf.int64)
  return resources.num_rows(layout.bound(handle))


def where(condition: tf.Tensor) -> tf.Tensor:
  """Returns where a condition of shape [n] holds, int64."""
  return tf.reshape(tf.where(condition), [-1])


def _read(
  handle: tf.Tensor, layout: pieces_lib.Layout, rows: tf.Tensor
) -> tf.Tensor:
  """Reads rows of a variable; a whole one has a single row."""
  width = math.prod(layout.row_shape)
  if layout.is_whole:
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=layout.dtype)
    return tf.reshape(value, [1, width])
  # After a scatter, reading a variable copies all of it.
  found = resources.gather(layout.bound(handle), rows)
  return tf.reshape(found, [-1, width])


def _count(shadow: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.VariableShape(input=shadow, out_type=tf.int64)[0]


def _noted(
  shadow: tf.Tensor, rows: tf.Tensor, first_digest: tf.Tensor
) -> tf.Tensor:
  """Returns the digests of rows as of the last write; of new ones the first."""
  known = _count(shadow)
  digests = tf.raw_ops.ResourceGather(
    resource=shadow, indices=tf.minimum(rows, known - 1), dtype=tf.int64
  )
  digests = tf.reshape(digests, tf.shape(rows))
  return tf.where(rows < known, digests, first_digest)


def _digests(values: tf.Tensor) -> tf.Tensor:
  """Returns the digest of each row, int64, of values of shape [n, width]."""
  if values.dtype == tf.int64 and values.shape[1] == 1:
    return values[:, 0]
  if values.dtype == tf.bool:
    values = tf.cast(values, tf.uint8)
  digests = tf.raw_ops.Fingerprint(data=values, method='farmhash64')
  return tf.bitcast(tf.ensure_shape(digests, [None, 8]), tf.int64)


def _bytes(values: tf.Tensor, row_bytes: int) -> tf.Tensor:
  if values.dtype == tf.bool:
    values = tf.cast(values, tf.uint8)
  return tf.reshape(tf.bitcast(values, tf.uint8), [-1, row_bytes])
