"""Codecs that cast values to a shorter floating type."""

from collections.abc import Sequence
import dataclasses

import tensorflow as tf

from tfps.wire.codecs import codec


class _Cast(codec.Codec):
  """Rounds each value to the nearest one of a shorter type."""

  for_pulls = True
  for_rows = True
  why_not = ''
  _sent: tf.DType

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    """See `Codec`."""
    return [tf.cast(codec.check_values(self, values), self._sent)]

  def decode(
    self, parts: Sequence[tf.Tensor], size: codec.Size, dtype: tf.DType
  ) -> tf.Tensor:
    """See `Codec`."""
    (sent,) = parts
    return codec.with_size(tf.cast(sent, dtype), size)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    """See `Codec`."""
    del dtype
    return size * int(self._sent.size)


@dataclasses.dataclass(frozen=True)
class Float16(_Cast):
  """IEEE half precision: 11 bits of precision, magnitudes 6e-8 to 65504.

  P. Micikevicius et al., "Mixed precision training", ICLR 2018. Gradients are
  often too small for the type; scale the loss, as the paper does.

  Magnitudes of 65520 and above become infinite; infinity and NaN are kept.
  """

  _sent = tf.float16


@dataclasses.dataclass(frozen=True)
class BFloat16(_Cast):
  """The upper half of a float32: its range, with 8 bits of precision.

  D. Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019.

  Infinity and NaN are kept. A finite value becomes infinite only where a
  float64 exceeds the range of float32, or where a float32 of 3.396e38 or above
  rounds up beyond it.
  """

  _sent = tf.bfloat16
