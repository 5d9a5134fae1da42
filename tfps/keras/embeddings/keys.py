"""Keys of tables, integers or strings, as numbers."""

import tensorflow as tf


def as_int64(keys: tf.Tensor, name: str) -> tf.Tensor:
  """Returns keys as the numbers that a table knows them by.

  Args:
    keys: integers or strings.
    name: name of the table.

  Raises:
    TypeError: they are of another type.
  """
  if keys.dtype == tf.string:
    return tf.strings.to_hash_bucket_fast(keys, tf.int64.max)
  if keys.dtype.is_integer:
    return tf.cast(keys, tf.int64)
  raise TypeError(
    f'{name}: keys of type {keys.dtype.name}, but they are integers or '
    'strings. A model without an input of such a type, as '
    "keras.Input(shape, dtype='int64'), makes all input float32, which lacks "
    'most large numbers.'
  )
