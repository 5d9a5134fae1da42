"""Tensors of a group, encoded together."""

from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

from tfps.wire import codecs


class Coding:
  """How some tensors of one floating dtype are encoded as one buffer.

  Args:
    codec: encodes.
    tensors: what is to be encoded, on the sender.
    name: of the tensors, for what the codec leaves to be sent later.
  """

  def __init__(
    self, codec: codecs.Codec, tensors: Sequence[tf.Tensor], name: str
  ) -> None:
    self._codec = codec
    self._tensors = tensors
    self._name = name
    self._dtype = tensors[0].dtype
    self._shapes = [tensor.shape.as_list() for tensor in tensors]

  def encode(self, workspace: Any) -> list[tf.Tensor]:
    """What crosses; to be called in the sender's device scope."""
    flat = tf.concat([tf.reshape(t, [-1]) for t in self._tensors], axis=0)
    if isinstance(self._codec, codecs.ErrorFeedback):
      parts = workspace.residuals.encode(self._codec, flat, self._name)
    else:
      parts = list(self._codec.encode(flat))
    return [*self._counts(), *parts]

  def decode(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors again; to be called in the receiver's device scope."""
    parts = list(parts)
    counts = iter(())
    if self._num_unknown:
      counts = iter(tf.unstack(parts.pop(0), self._num_unknown))
    shapes = [
      [next(counts) if size is None else size for size in shape]
      for shape in self._shapes
    ]
    sizes = [_product(shape) for shape in shapes]
    flat = self._codec.decode(parts, sum(sizes), self._dtype)
    return [
      tf.ensure_shape(tf.reshape(piece, shape), known)
      for piece, shape, known in zip(
        tf.split(flat, sizes), shapes, self._shapes, strict=True
      )
    ]

  @property
  def _num_unknown(self) -> int:
    return sum(None in shape for shape in self._shapes)

  def _counts(self) -> list[tf.Tensor]:
    """The numbers of rows that the receiver cannot know."""
    if not self._num_unknown:
      return []
    counts = [
      tf.shape(tensor, out_type=tf.int64)[0]
      for tensor, shape in zip(self._tensors, self._shapes, strict=True)
      if None in shape
    ]
    return [tf.stack(counts)]


def _product(shape: Sequence[Any]) -> Any:
  first, rest = (*shape, 1)[0], shape[1:]
  return first * math.prod(rest)
