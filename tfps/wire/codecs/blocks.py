"""Conversion of flat buffers to rows of fixed size, zero-padded, and back."""

import tensorflow as tf

from tfps.wire.codecs import codec


def from_flat(values: tf.Tensor, block: int) -> tf.Tensor:
  """Returns a matrix with rows of `block` values, zero-padded at the end."""
  missing = -codec.size_of(values) % block
  if not isinstance(missing, int) or missing:
    values = tf.pad(values, [[0, missing]])
  return tf.reshape(values, [number(codec.size_of(values), block), block])


def to_flat(matrix: tf.Tensor, size: codec.Size) -> tf.Tensor:
  """Returns the first `size` values of a matrix as a flat tensor."""
  return codec.with_size(tf.reshape(matrix, [-1])[:size], size)


def number(size: codec.Size, block: int) -> codec.Size:
  """Returns the number of blocks that `size` values need."""
  return (size + block - 1) // block
