"""Codecs that send some of the values and leave the others out, as zeros."""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf

from tfps.wire.codecs import codec
from tfps.wire.codecs import selection

_SEED_BYTES = 8
_ROUNDING = 1e-6  # 0.01 of 700 is 7, whatever floats make of it
_WHY_NOT = (
  'what it leaves out comes out as zeros, which gradients stand if errors are '
  'fed back, but values of variables and rows do not'
)


class _Some(codec.Codec):
  """Sends a part of the values."""

  ratio: float
  why_not = _WHY_NOT

  @property
  def is_lossless(self) -> bool:
    return self.ratio == 1

  def _number(self, size: codec.Size) -> codec.Size:
    """How many to send: the ratio rounded up, and one at least."""
    if isinstance(size, int):
      return min(size, max(1, math.ceil(self.ratio * size - _ROUNDING)))
    number = tf.math.ceil(self.ratio * tf.cast(size, tf.float64) - _ROUNDING)
    return tf.minimum(size, tf.maximum(1, tf.cast(number, size.dtype)))


@dataclasses.dataclass(frozen=True)
class TopK(_Some):
  """Sends the values of the largest magnitude, each with its index.

  A. F. Aji and K. Heafield, "Sparse communication for distributed gradient
  descent", EMNLP 2017; Y. Lin et al., "Deep gradient compression: reducing the
  communication bandwidth for distributed training", ICLR 2018. Both keep what
  was left out for later, as `ErrorFeedback` does.

  Of equal magnitudes the first are sent. NaN goes before infinity, infinity
  before anything else; both arrive as they were.

  Attributes:
    ratio: the part of the values to send, of at least one. Each takes its own
      bytes and 4, or 8 where 4 cannot tell as many indices.
  """

  ratio: float

  def __post_init__(self) -> None:
    codec.check_ratio('TopK', self.ratio)

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    values = codec.check_values(self, values)
    size = codec.size_of(values)
    number = self._number(size)
    indices = selection.largest(values, number)
    indices = codec.with_size(tf.cast(indices, _index_dtype(size)), number)
    return [tf.gather(values, indices), indices]

  def decode(
    self, parts: Sequence[tf.Tensor], size: codec.Size, dtype: tf.DType
  ) -> tf.Tensor:
    values, indices = parts
    return _scatter(tf.cast(values, dtype), indices, size)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    num_bytes = tf.as_dtype(dtype).size + _index_dtype(size).size
    return int(self._number(size) * num_bytes)


@dataclasses.dataclass(frozen=True)
class RandomK(_Some):
  """Sends values at random places, and of the places only a seed.

  S. U. Stich et al., "Sparsified SGD with memory", NeurIPS 2018. The buffer is
  cut, from a random place on, into as many stretches as values are sent, and
  one value of each is sent: all are chosen with the same probability, evenly
  over the buffer, by work in proportion to what is sent.

  The values arrive as they are. Then `ErrorFeedback` can send later what was
  left out, which is how the paper has it. `unbiased` enlarges them so that the
  mean over many steps is right without it; that adds so much variance that the
  learning rate has to fall in proportion to the ratio.

  If any value is infinite or NaN, all that are sent are NaN.

  Attributes:
    ratio: the part of the values to send, of at least one.
    unbiased: whether to divide what arrives by the part that was sent.
  """

  ratio: float
  unbiased: bool = False

  def __post_init__(self) -> None:
    codec.check_ratio('RandomK', self.ratio)

  @property
  def why_no_feedback(self) -> str:
    if not self.unbiased:
      return ''
    return 'values that are enlarged make the error grow from step to step'

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    values = codec.check_values(self, values)
    size = codec.size_of(values)
    number = self._number(size)
    limits = np.iinfo(np.int32)
    seed = tf.random.uniform([2], limits.min, limits.max, tf.int32)
    sent = tf.gather(values, selection.random(seed, number, size))
    finite = tf.reduce_all(tf.math.is_finite(values))
    nan = tf.constant(np.nan, values.dtype)
    return [codec.with_size(tf.where(finite, sent, nan), number), seed]

  def decode(
    self, parts: Sequence[tf.Tensor], size: codec.Size, dtype: tf.DType
  ) -> tf.Tensor:
    values, seed = parts
    number = codec.size_of(values)
    if self.unbiased:
      factor = tf.cast(size, tf.float64) / tf.cast(number, tf.float64)
      wide = codec.arithmetic_dtype(values.dtype)
      values = tf.cast(values, wide) * tf.cast(factor, wide)
    indices = selection.random(seed, number, size)
    return _scatter(tf.cast(values, dtype), indices, size)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    return int(self._number(size) * tf.as_dtype(dtype).size) + _SEED_BYTES


def _scatter(
  values: tf.Tensor, indices: tf.Tensor, size: codec.Size
) -> tf.Tensor:
  """The values at their indices, and zeros elsewhere."""
  shape = tf.cast([size], indices.dtype)
  everything = tf.scatter_nd(indices[:, tf.newaxis], values, shape)
  return codec.with_size(everything, size)


def _index_dtype(size: codec.Size) -> tf.DType:
  if isinstance(size, int) and size > tf.int32.max:
    return tf.int64
  return tf.int32
