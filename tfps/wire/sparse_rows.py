"""Deduplication of row numbers, so that each row is transferred once."""

import weakref

import tensorflow as tf

_UNIQUE = ('Unique', 'UniqueV2')

# By identity, as long as they exist.
_DISTINCT: weakref.WeakValueDictionary[int, tf.Tensor] = (
  weakref.WeakValueDictionary()
)


def noted_distinct(indices: tf.Tensor) -> tf.Tensor:
  """Returns indices after noting that they are distinct."""
  _DISTINCT[id(indices)] = indices
  return indices


def are_distinct(indices: tf.Tensor) -> bool:
  """Returns whether indices are statically known to be distinct."""
  if id(indices) in _DISTINCT:
    return True
  if tf.executing_eagerly() or indices.op.type not in _UNIQUE:
    return False
  # The second output, positions, may have repeated values.
  return indices.value_index == 0
