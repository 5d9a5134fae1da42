"""Error feedback: sends in later steps what a lossy codec left out."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.wire.codecs import codec as codec_lib


@dataclasses.dataclass(frozen=True)
class ErrorFeedback(codec_lib.Codec):
  """Adds the encoding error of one step to the gradient of the next.

  The worker keeps the sum of all errors of each buffer, its residual: all that
  was sent plus the residual is the sum of all gradients. F. Seide et al.,
  "1-bit stochastic gradient descent and its application to data-parallel
  distributed training of speech DNNs", Interspeech 2014; S. P. Karimireddy et
  al., "Error feedback fixes SignSGD and other gradient compression schemes",
  ICML 2019, show why it converges.

  Infinite or NaN residuals are reset to zero: the receiver has seen them by
  then, and one bad step must not corrupt all later ones.

  Attributes:
    codec: the codec that encodes the sums.
  """

  codec: codec_lib.Codec
  why_not = (
    'its residual belongs to the gradients of a buffer that is the same in '
    'each step, which values of variables and rows are not'
  )

  def __post_init__(self) -> None:
    if not isinstance(self.codec, codec_lib.Codec):
      raise ValueError(
        f'ErrorFeedback: {self.codec!r} is no codec. Give one, such as '
        'ErrorFeedback(OneBit()).'
      )
    if self.codec.why_no_feedback:
      raise ValueError(
        f'ErrorFeedback: it is of no use to {self.codec}, because '
        f'{self.codec.why_no_feedback}. Use {self.codec} alone.'
      )

  @property
  def why_no_feedback(self) -> str:
    return 'it has that already'

  @property
  def is_lossless(self) -> bool:
    return self.codec.is_lossless

  def initial_residual(self, size: codec_lib.Size, dtype: Any) -> tf.Tensor:
    """Returns zeros, in the dtype of residuals of values of `dtype`.

    Args:
      size: number of values.
      dtype: dtype of the values.
    """
    return tf.zeros([size], codec_lib.arithmetic_dtype(dtype))

  def encode_with(
    self, values: tf.Tensor, residual: tf.Tensor
  ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Encodes the sum of values and residual.

    Args:
      values: tensor of shape [size]; see `Codec.encode`.
      residual: tensor of shape [size]: first `initial_residual`, then the one
        returned by the previous call.

    Returns:
      The parts, and the new residual, which has the dtype of the old one.

    Raises:
      ValueError: the shapes differ, or the values cannot be encoded.
    """
    values = codec_lib.check_values(self, values)
    if not residual.shape.is_compatible_with(values.shape):
      raise ValueError(
        f'{self}: the residual has shape {residual.shape} and the values have '
        f'{values.shape}. Keep a residual for each buffer.'
      )
    total = tf.cast(values, residual.dtype) + residual
    parts = self.codec.encode(tf.cast(total, values.dtype))
    size = codec_lib.size_of(values)
    sent = self.codec.decode(parts, size, values.dtype)
    left = total - tf.cast(sent, residual.dtype)
    return parts, tf.where(tf.math.is_finite(left), left, tf.zeros_like(left))

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    """Encodes without a residual. See base class."""
    return self.codec.encode(values)

  def decode(
    self,
    parts: Sequence[tf.Tensor],
    size: codec_lib.Size,
    dtype: tf.DType,
  ) -> tf.Tensor:
    """See base class."""
    return self.codec.decode(parts, size, dtype)

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    """See base class."""
    return self.codec.wire_bytes(size, dtype)
