"""A codec that sends the sign of each value, and two means per block."""

from collections.abc import Sequence
import dataclasses

import tensorflow as tf

from tfps.wire.codecs import blocks
from tfps.wire.codecs import codec

_BITS = 8
_WEIGHTS = [128.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0]
_BITS_OF_BYTE = [
  [bool(byte & int(weight)) for weight in _WEIGHTS] for byte in range(256)
]


@dataclasses.dataclass(frozen=True)
class OneBit(codec.Codec):
  """Replaces each value by the mean of its block's values of the same sign.

  Zeros count as negative. F. Seide et al., "1-bit stochastic gradient descent
  and its application to data-parallel distributed training of speech DNNs",
  Interspeech 2014, have two means per column of a weight matrix. A flat buffer
  holds variables with very different gradients, hence two per block here.

  Use it in `ErrorFeedback` only: without, training does not converge.

  An infinite value makes all values of its sign in its block infinite; NaN
  makes all that are not positive NaN. Means of values beyond 3e35 may overflow.

  Attributes:
    block: number of values per pair of means, a multiple of 8. A pair takes 8
      bytes, 16 for float64.
  """

  block: int = 1024
  why_not = (
    'it sends only signs and two means per block, which is precise enough for '
    'gradients with error feedback, but not for variables and rows'
  )

  def __post_init__(self) -> None:
    codec.check_positive_int('OneBit', 'block', self.block)
    if self.block % _BITS:
      raise ValueError(
        f'OneBit: block is {self.block}. Give a multiple of {_BITS}.'
      )

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    values = codec.check_values(self, values)
    size = codec.size_of(values)
    dtype = codec.arithmetic_dtype(values.dtype)
    matrix = blocks.from_flat(tf.cast(values, dtype), self.block)
    is_up = matrix > 0
    means = _means(matrix, is_up, size, self.block)
    num_bytes = blocks.number(size, _BITS)
    return [codec.with_size(_pack(is_up)[:num_bytes], num_bytes), means]

  def decode(
    self, parts: Sequence[tf.Tensor], size: codec.Size, dtype: tf.DType
  ) -> tf.Tensor:
    packed, means = parts
    is_up = tf.reshape(
      tf.gather(tf.constant(_BITS_OF_BYTE), tf.cast(packed, tf.int32)), [-1]
    )
    is_up = blocks.from_flat(is_up, self.block)
    means = tf.cast(means, dtype)
    return blocks.to_flat(tf.where(is_up, means[:, :1], means[:, 1:]), size)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    mean_bytes = int(codec.arithmetic_dtype(dtype).size)
    return -(-size // _BITS) + 2 * mean_bytes * -(-size // self.block)


def _means(
  matrix: tf.Tensor, is_up: tf.Tensor, size: codec.Size, block: int
) -> tf.Tensor:
  """Returns the means of each row's positive and of its other values.

  Padding does not count.
  """
  zeros = tf.zeros([], matrix.dtype)
  number_up = tf.math.count_nonzero(is_up, axis=1, dtype=tf.int32)
  starts = tf.range(blocks.number(size, block)) * block
  number = tf.minimum(size - starts, block)
  return tf.stack(
    [
      _mean(tf.where(is_up, matrix, zeros), number_up),
      _mean(tf.where(is_up, zeros, matrix), number - number_up),
    ],
    axis=1,
  )


def _mean(matrix: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
  total = tf.reduce_sum(matrix, axis=1)
  return tf.math.divide_no_nan(total, tf.cast(number, total.dtype))


def _pack(is_up: tf.Tensor) -> tf.Tensor:
  """Packs eight booleans into a byte, the first in the highest bit."""
  bits = tf.reshape(tf.cast(is_up, tf.float32), [-1, _BITS])
  return tf.cast(tf.linalg.matvec(bits, tf.constant(_WEIGHTS)), tf.uint8)
