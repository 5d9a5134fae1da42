"""Encoding of several tensors as one buffer."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.wire import codecs
from tfps.wire import shapes


class Encoding:
  """Encodes several tensors of one floating dtype as one buffer.

  Args:
    codec: the codec.
    tensors: the tensors to encode, on the sender.
    name: name of the tensors, which is the key of the codec's residual.
  """

  def __init__(
    self, codec: codecs.Codec, tensors: Sequence[tf.Tensor], name: str
  ) -> None:
    self._codec = codec
    self._tensors = tensors
    self._name = name
    self._dtype = tensors[0].dtype
    self._shapes = shapes.Shapes(tensors)

  def encode(self, workspace: Any) -> list[tf.Tensor]:
    """Returns the tensors to send; call it in the sender's device scope.

    Args:
      workspace: keeps residuals; see `traffic.Workspace`.
    """
    flat = tf.concat([tf.reshape(t, [-1]) for t in self._tensors], axis=0)
    if isinstance(self._codec, codecs.ErrorFeedback):
      parts = workspace.residuals.encode(self._codec, flat, self._name)
    else:
      parts = list(self._codec.encode(flat))
    if self._shapes.num_sent:
      parts.insert(0, self._shapes.counts(self._tensors))
    return parts

  def decode(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the decoded tensors; call it in the receiver's device scope.

    Args:
      parts: the result of `encode`, at the receiver.
    """
    parts = list(parts)
    sent = parts.pop(0) if self._shapes.num_sent else None
    counts = self._shapes.received(sent)
    blocks = [[i] for i in range(len(self._tensors))]
    sizes = self._shapes.sizes(blocks, counts)
    flat = self._codec.decode(parts, shapes.total(sizes), self._dtype)
    return [
      self._shapes.restore(block, piece, counts)
      for block, piece in zip(blocks, tf.split(flat, sizes), strict=True)
    ]
