"""Numbers of rows, each of which is needed once however often it is named."""

import tensorflow as tf

_UNIQUE = ('Unique', 'UniqueV2')


def are_distinct(indices: tf.Tensor) -> bool:
  """Whether they are known to name each row once, in a function."""
  if tf.executing_eagerly() or indices.op.type not in _UNIQUE:
    return False
  # The other output tells where each was found, and names rows repeatedly.
  return indices.value_index == 0


def distinct(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
  """Each index once, and where to find each; None if they are so already."""
  if are_distinct(indices):
    return indices, None
  return tf.unique(tf.reshape(indices, [-1]))
