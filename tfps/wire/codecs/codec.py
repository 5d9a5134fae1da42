"""What a codec is, and what all of them check."""

from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import tensorflow as tf

Size: TypeAlias = int | tf.Tensor


class Codec:
  """Encodes a flat buffer of floats for its way between two tasks.

  The sender encodes, the parts travel as one tensor, the receiver decodes. Both
  are called while a `tf.function` is traced, on the device that they run on.

  A codec of your own is a subclass with the three methods below. It may also
  say, by these attributes, what it may be used for:

  Attributes:
    for_pulls: whether values of variables may travel so, not only gradients.
    for_rows: whether rows of embeddings may, whose number differs each time.
    why_not: the reason if one of the two is false; ends an error's sentence.
  """

  for_pulls: bool = False
  for_rows: bool = False
  why_not: str = 'its class does not say for_pulls or for_rows'

  @property
  def why_no_feedback(self) -> str:
    """The reason if `ErrorFeedback` cannot help; ends an error's sentence."""
    return ''

  @property
  def is_lossless(self) -> bool:
    """Whether what was encoded comes out the same, whatever it was."""
    return False

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    """Turns values into a few numeric tensors; runs on the sender.

    Args:
      values: of one dimension and any floating type. Where its length is
        static, so must be the shapes of the parts.
    """
    raise NotImplementedError

  def decode(
    self, parts: Sequence[tf.Tensor], size: Size, dtype: tf.DType
  ) -> tf.Tensor:
    """Turns the parts back into values; runs on the receiver.

    Args:
      parts: what `encode` returned.
      size: how many values, an int or a scalar tensor.
      dtype: their type.

    Returns:
      A tensor of shape [size].
    """
    raise NotImplementedError

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    """How many bytes the parts of so many values of a type have."""
    raise NotImplementedError


def check_values(codec: Codec, values: Any) -> tf.Tensor:
  """Returns the values as a tensor, or raises ValueError."""
  values = tf.convert_to_tensor(values)
  if values.shape.rank != 1 or not values.dtype.is_floating:
    raise ValueError(
      f'{codec}: values of shape {values.shape} and type {values.dtype.name} '
      'cannot be encoded. Give floats, reshaped to one dimension.'
    )
  return values


def check_positive_int(codec: str, name: str, value: Any) -> None:
  """Raises ValueError unless the value is an int of at least 1."""
  if not isinstance(value, int) or isinstance(value, bool) or value < 1:
    raise ValueError(f'{codec}: {name} is {value!r}. Give at least 1.')


def check_ratio(codec: str, ratio: Any) -> None:
  """Raises ValueError unless the value is more than 0 and at most 1."""
  if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
    raise ValueError(
      f'{codec}: ratio is {ratio!r}. Give the part of the values to send, more '
      'than 0 and at most 1.'
    )


def size_of(values: tf.Tensor) -> Size:
  """The number of values: an int where it is static, else a tensor."""
  size = values.shape[0]
  return tf.size(values) if size is None else int(size)


def with_size(values: tf.Tensor, size: Size) -> tf.Tensor:
  """The same values, whose static shape is known if the size is an int."""
  if isinstance(size, int):
    values.set_shape([size])
  return values


def arithmetic_dtype(dtype: tf.DType) -> tf.DType:
  """In which to compute: no less exact than the values, nor than float32."""
  return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
