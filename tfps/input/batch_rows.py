"""Rows of the tensors of a batch, which may be ragged or sparse."""

from typing import Any

import tensorflow as tf


def count(leaf: Any) -> Any:
  """Returns the number of rows of a tensor, which has an axis."""
  if isinstance(leaf, tf.SparseTensor):
    return leaf.dense_shape[0]
  if isinstance(leaf, tf.RaggedTensor):
    return leaf.nrows()
  static = leaf.shape[0]
  return tf.shape(leaf, tf.int64)[0] if static is None else static


def part(leaf: Any, first: Any, last: Any) -> Any:
  """Returns some rows of a tensor; what has no axis as it is.

  Args:
    leaf: the tensor, or None.
    first: number of the first row.
    last: number of the row after the last one.
  """
  if leaf is None or leaf.shape.rank == 0:
    return leaf
  if not isinstance(leaf, tf.SparseTensor):
    return leaf[first:last]
  first, last = tf.cast(first, tf.int64), tf.cast(last, tf.int64)
  start = tf.one_hot(0, leaf.shape.rank, first)
  size = tf.concat([[last - first], leaf.dense_shape[1:]], axis=0)
  return tf.sparse.slice(leaf, start, size)
