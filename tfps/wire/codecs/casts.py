"""Codecs that send values in a shorter floating type."""

from collections.abc import Sequence
import dataclasses

import tensorflow as tf

from tfps.wire.codecs import codec


class _Cast(codec.Codec):
  """Sends each value rounded to the nearest one of a type."""

  for_pulls = True
  for_rows = True
  why_not = ''
  _sent: tf.DType

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    return [tf.cast(codec.check_values(self, values), self._sent)]

  def decode(
    self, parts: Sequence[tf.Tensor], size: codec.Size, dtype: tf.DType
  ) -> tf.Tensor:
    (sent,) = parts
    return codec.with_size(tf.cast(sent, dtype), size)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    del dtype
    return size * int(self._sent.size)


@dataclasses.dataclass(frozen=True)
class Float16(_Cast):
  """IEEE half precision: 11 bits of precision, magnitudes 6e-8 to 65504.

  P. Micikevicius et al., "Mixed precision training", ICLR 2018. Gradients are
  often smaller than the type can tell from zero; scale the loss, as they do.

  What is too large, from 65520 on, comes out infinite; infinity and NaN stay.
  """

  _sent = tf.float16


@dataclasses.dataclass(frozen=True)
class BFloat16(_Cast):
  """The upper half of a float32: its range, with 8 bits of precision.

  D. Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019.

  Infinity and NaN stay. A finite value comes out infinite only where a float64
  is beyond a float32's range or a float32 rounds up beyond it, from 3.396e38.
  """

  _sent = tf.bfloat16
