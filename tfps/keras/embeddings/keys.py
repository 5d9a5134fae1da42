"""Keys of tables, integers or strings, as numbers."""

from typing import Any

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
    'most large numbers; to export or to serve one, give input_signature.'
  )


def of_features(ids: Any, number: int, name: str) -> Any:
  """Returns ids as keys that no two features have in common.

  The id i of the feature f, counted from 0, has the key i * m + f, where m is
  the number of features, or the next one if that is even: then ids of one
  feature have different keys even where the product overflows.

  Args:
    ids: integers or strings, dense, of shape [batch, number, ...], sparse, of
      shape [batch, number], or ragged, of shape [batch, number, None].
    number: number of features.
    name: name of the layer.

  Returns:
    int64 keys in the same form.

  Raises:
    TypeError: the ids are of another type.
    ValueError: they are of another shape.
    tf.errors.InvalidArgumentError: likewise, where it is known only now.
  """
  is_ragged = isinstance(ids, tf.RaggedTensor)
  if (is_ragged and ids.ragged_rank != 2) or ids.shape.rank in (0, 1):
    raise _shape_error(ids.shape, number, name)
  if ids.shape[1] not in (number, None):
    raise _shape_error(ids.shape, number, name)
  numbers = tf.range(number, dtype=tf.int64)
  if is_ragged:
    lengths = tf.debugging.assert_equal(
      ids.row_lengths(),
      tf.constant(number, ids.row_splits.dtype),
      f'{name}: num_features={number}, but examples have other numbers of them',
    )
    with tf.control_dependencies([lengths] if lengths is not None else []):
      rows = ids.values.value_rowids()
    features = tf.gather(numbers, rows % number)
    return ids.with_flat_values(_key(ids.flat_values, features, number, name))
  if isinstance(ids, tf.SparseTensor):
    features = tf.gather(numbers, ids.indices[:, 1])
    return ids.with_values(_key(ids.values, features, number, name))
  ids = tf.ensure_shape(ids, [None, number, *ids.shape[2:]])
  features = tf.reshape(numbers, [number] + [1] * (ids.shape.rank - 2))
  return _key(ids, features, number, name)


def _key(ids: tf.Tensor, features: tf.Tensor, number: int, name: str) -> Any:
  return as_int64(ids, name) * (number | 1) + features


def _shape_error(shape: tf.TensorShape, number: int, name: str) -> ValueError:
  return ValueError(
    f'{name}: ids of shape {shape}, but num_features={number}. The second axis '
    'has the features: [batch, num_features], or [batch, num_features, None] '
    'where a feature has several ids.'
  )
