"""Codecs that send some of the values; the others are decoded as zeros."""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf

from tfps.wire.codecs import codec
from tfps.wire.codecs import selection

_SEED_BYTES = 8
_ROUNDING = 1e-6  # 0.01 of 700 is to be 7 despite rounding errors
_WHY_NOT = (
  'values that it leaves out are decoded as zeros, which works for gradients '
  'with error feedback, but not for variables and rows'
)


class _Some(codec.Codec):
  """Base of codecs that send a fixed ratio of the values."""

  ratio: float
  why_not = _WHY_NOT

  @property
  def is_lossless(self) -> bool:
    return self.ratio == 1

  def _number(self, size: codec.Size) -> codec.Size:
    """Returns how many values to send: the ratio rounded up, at least 1."""
    if isinstance(size, int):
      return min(size, max(1, math.ceil(self.ratio * size - _ROUNDING)))
    number = tf.math.ceil(self.ratio * tf.cast(size, tf.float64) - _ROUNDING)
    return tf.minimum(size, tf.maximum(1, tf.cast(number, size.dtype)))


@dataclasses.dataclass(frozen=True)
class TopK(_Some):
  """Sends the values of the largest magnitude, each with its index.

  A. F. Aji and K. Heafield, "Sparse communication for distributed gradient
  descent", EMNLP 2017; Y. Lin et al., "Deep gradient compression: reducing the
  communication bandwidth for distributed training", ICLR 2018. Both
  accumulate what was left out, as `ErrorFeedback` does.

  Of equal magnitudes the first are sent. NaN counts as the largest magnitude,
  then infinity; both arrive unchanged.

  Attributes:
    ratio: ratio of the values to send; at least one value is sent. Each takes
      4 bytes in addition to its own, or 8 if indices exceed int32.
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
  """Sends values at random indices, with a seed in place of the indices.

  S. U. Stich et al., "Sparsified SGD with memory", NeurIPS 2018. From a random
  offset on, the buffer is divided into as many stretches as values are sent,
  and one value of each is sent. So all are equally probable, spread evenly over
  the buffer, and the work is proportional to the values sent.

  Values arrive unchanged, and `ErrorFeedback` sends later what was left out, as
  in the paper. `unbiased` instead scales them such that the mean over many
  steps is exact; that adds so much variance that the learning rate must be
  reduced in proportion to the ratio.

  If any value is infinite or NaN, all values sent are NaN.

  Attributes:
    ratio: ratio of the values to send; at least one value is sent.
    unbiased: whether to divide received values by the ratio sent.
  """

  ratio: float
  unbiased: bool = False

  def __post_init__(self) -> None:
    codec.check_ratio('RandomK', self.ratio)

  @property
  def why_no_feedback(self) -> str:
    if not self.unbiased:
      return ''
    return 'scaled values make the error grow from step to step'

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
  """Returns the values at their indices, and zeros elsewhere."""
  shape = tf.cast([size], indices.dtype)
  everything = tf.scatter_nd(indices[:, tf.newaxis], values, shape)
  return codec.with_size(everything, size)


def _index_dtype(size: codec.Size) -> tf.DType:
  if isinstance(size, int) and size > tf.int32.max:
    return tf.int64
  return tf.int32
