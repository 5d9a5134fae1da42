"""A codec that sends one byte per value, and a scale per block."""

from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf

from tfps.wire.codecs import blocks
from tfps.wire.codecs import codec

_MAX_LEVEL = 127


@dataclasses.dataclass(frozen=True)
class Int8(codec.Codec):
  """Rounds to multiples of a block's scale, its largest magnitude / 127.

  An error is at most half the scale. Stochastic rounding goes up or down with
  the probability that makes the mean exact, so that errors average out over
  steps and workers; one error is then at most a scale. D. Alistarh et al.,
  "QSGD: communication-efficient SGD via gradient quantization and encoding",
  NIPS 2017 (with the largest magnitude in place of the Euclidean norm, as in
  their experiments).

  A block with an infinite or NaN value is decoded as NaN throughout, one whose
  largest magnitude is below 1.5e-36 (2.8e-306 for float64) as zeros.

  Attributes:
    block: number of values per scale. A scale takes 4 bytes, 8 for float64.
    stochastic: whether to round at random, by TensorFlow's global seed.
  """

  block: int = 1024
  stochastic: bool = False
  for_pulls = True
  for_rows = True
  why_not = ''

  def __post_init__(self) -> None:
    codec.check_positive_int('Int8', 'block', self.block)

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    values = codec.check_values(self, values)
    dtype = codec.arithmetic_dtype(values.dtype)
    matrix = blocks.from_flat(tf.cast(values, dtype), self.block)
    scales = _scales(matrix)
    levels = matrix * tf.math.divide_no_nan(tf.ones([], dtype), scales)
    levels = round_at_random(levels) if self.stochastic else tf.round(levels)
    sent = tf.cast(levels, tf.int8)
    return [blocks.to_flat(sent, codec.size_of(values)), scales[:, 0]]

  def decode(
    self, parts: Sequence[tf.Tensor], size: codec.Size, dtype: tf.DType
  ) -> tf.Tensor:
    sent, scales = parts
    levels = tf.cast(blocks.from_flat(sent, self.block), scales.dtype)
    values = levels * scales[:, tf.newaxis]
    return blocks.to_flat(tf.cast(values, dtype), size)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    scale_bytes = int(codec.arithmetic_dtype(dtype).size)
    return size + scale_bytes * -(-size // self.block)


def round_at_random(levels: tf.Tensor) -> tf.Tensor:
  """Rounds up or down with an exact mean, and clips to [-127, 127]."""
  up = tf.random.uniform(tf.shape(levels), dtype=levels.dtype)
  # 127 plus almost 1 is 128 in float32; earlier rounding errors add to it.
  return tf.clip_by_value(tf.floor(levels + up), -_MAX_LEVEL, _MAX_LEVEL)


def _scales(matrix: tf.Tensor) -> tf.Tensor:
  """Returns [rows, 1] scales: NaN for non-finite rows, 0 for tiny values."""
  dtype = matrix.dtype
  limits = np.finfo(dtype.as_numpy_dtype)
  # With a larger scale, 127 times the scale would overflow.
  max_scale = np.nextafter(
    limits.max / _MAX_LEVEL, 0, dtype=dtype.as_numpy_dtype
  )
  highest = tf.reduce_max(matrix, axis=1, keepdims=True)
  lowest = tf.reduce_min(matrix, axis=1, keepdims=True)
  largest = tf.maximum(highest, -lowest)
  scales = tf.minimum(largest / _MAX_LEVEL, max_scale)
  # Some devices flush subnormal numbers to zero.
  scales = tf.where(scales < limits.tiny, tf.zeros([], dtype), scales)
  is_finite = tf.math.is_finite(largest)
  return tf.where(is_finite, scales, tf.constant(np.nan, dtype))
