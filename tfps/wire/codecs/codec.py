"""The interface of codecs, and checks that they share."""

from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import tensorflow as tf

Size: TypeAlias = int | tf.Tensor


class Codec:
  """Encodes a flat buffer of floats for transfer between two tasks.

  The sender encodes, the parts travel as one tensor, the receiver decodes. Both
  are called while a `tf.function` is traced, on the device that they run on.

  A custom codec is a subclass that implements `encode`, `decode` and
  `wire_bytes`. These class attributes declare where it may be used:

  Attributes:
    for_pulls: whether it may encode values of variables, not only gradients.
    for_rows: whether it may encode embedding rows, whose number varies.
    why_not: the reason if one of the two is false; ends an error's sentence.
  """

  for_pulls: bool = False
  for_rows: bool = False
  why_not: str = 'its class does not declare for_pulls or for_rows'

  @property
  def why_no_feedback(self) -> str:
    """The reason not to use `ErrorFeedback`; empty if it may be used."""
    return ''

  @property
  def is_lossless(self) -> bool:
    """True if decoding always returns exactly the encoded values."""
    return False

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    """Encodes values as a few numeric tensors; runs on the sender.

    Args:
      values: tensor of shape [size] and any floating dtype.

    Returns:
      The parts. If `size` is static, so are their shapes.
    """
    raise NotImplementedError

  def decode(
    self, parts: Sequence[tf.Tensor], size: Size, dtype: tf.DType
  ) -> tf.Tensor:
    """Decodes the parts; runs on the receiver.

    Args:
      parts: the result of `encode`.
      size: number of values, an int or a scalar tensor.
      dtype: dtype of the values.

    Returns:
      A tensor of shape [size].
    """
    raise NotImplementedError

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    """Returns how many bytes the parts of an encoded buffer have.

    Args:
      size: the number of values.
      dtype: their floating dtype.
    """
    raise NotImplementedError


def check_values(codec: Codec, values: Any) -> tf.Tensor:
  """Returns the values as a tensor.

  Args:
    codec: the codec that encodes them, for the error.
    values: floats of shape [size].

  Raises:
    ValueError: the values are no floats, or not of one dimension.
  """
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
  """Returns the number of values: an int if static, else a scalar tensor."""
  size = values.shape[0]
  return tf.size(values) if size is None else int(size)


def with_size(values: tf.Tensor, size: Size) -> tf.Tensor:
  """Returns the values, with their static shape set if `size` is an int."""
  if isinstance(size, int):
    values.set_shape([size])
  return values


def arithmetic_dtype(dtype: tf.DType) -> tf.DType:
  """Returns the dtype for arithmetic: float64 for float64, else float32."""
  return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
