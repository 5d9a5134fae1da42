"""Deduplication of row numbers, so that each row is transferred once."""

import tensorflow as tf

_UNIQUE = ('Unique', 'UniqueV2')


def are_distinct(indices: tf.Tensor) -> bool:
  """Returns whether indices are statically known to be distinct."""
  if tf.executing_eagerly() or indices.op.type not in _UNIQUE:
    return False
  # The second output, positions, may have repeated values.
  return indices.value_index == 0


def distinct(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
  """Returns the distinct indices.

  Args:
    indices: row numbers of any shape.

  Returns:
    The distinct indices, and for each given index its position among them; None
    if the given indices are known to be distinct.
  """
  if are_distinct(indices):
    return indices, None
  return tf.unique(tf.reshape(indices, [-1]))
