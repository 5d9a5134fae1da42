"""Deduplication of row numbers, so that each row is transferred once."""

import tensorflow as tf

_UNIQUE = ('Unique', 'UniqueV2')


def are_distinct(indices: tf.Tensor) -> bool:
  """Returns whether indices are statically known to be distinct."""
  if tf.executing_eagerly() or indices.op.type not in _UNIQUE:
    return False
  # The second output, positions, may have repeated values.
  return indices.value_index == 0
