"""A flat buffer as the rows of a matrix, the last of them filled with zeros."""

import tensorflow as tf

from tfps.wire.codecs import codec


def from_flat(values: tf.Tensor, block: int) -> tf.Tensor:
  """A matrix of rows of `block` values."""
  missing = -codec.size_of(values) % block
  if not isinstance(missing, int) or missing:
    values = tf.pad(values, [[0, missing]])
  return tf.reshape(values, [number(codec.size_of(values), block), block])


def to_flat(matrix: tf.Tensor, size: codec.Size) -> tf.Tensor:
  """The first `size` values of a matrix."""
  return codec.with_size(tf.reshape(matrix, [-1])[:size], size)


def number(size: codec.Size, block: int) -> codec.Size:
  """How many blocks so many values take."""
  return (size + block - 1) // block
