"""Residuals of error feedback: what a worker has not sent yet.

They are kept on the worker and lost with it, which is harmless.
"""

from typing import Any

import tensorflow as tf

from tfps._compat import shared_variables
from tfps.wire import codecs


class Residuals:
  """The residuals of the function that is traced, by name."""

  def __init__(self) -> None:
    self._graph = tf.compat.v1.get_default_graph()
    # One handle per function: TensorFlow orders the ops that share a handle.
    self._handles: dict[str, tf.Tensor] = {}

  def encode(
    self, codec: codecs.ErrorFeedback, flat: tf.Tensor, name: str
  ) -> list[tf.Tensor]:
    """Encodes the sum of a buffer and its residual, and keeps the new residual.

    Args:
      codec: the codec.
      flat: the buffer, of a static shape [size].
      name: the key of the residual.
    """
    zeros = codec.initial_residual(flat.shape[0], flat.dtype)
    handle = self._handle(name, zeros)
    residual = tf.cond(
      tf.raw_ops.VarIsInitializedOp(resource=handle),
      lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=zeros.dtype),
      lambda: zeros,
    )
    residual = tf.ensure_shape(residual, zeros.shape)
    parts, rest = codec.encode_with(flat, residual)
    tf.raw_ops.AssignVariableOp(resource=handle, value=rest)
    return list(parts)

  def _handle(self, name: str, like: tf.Tensor) -> Any:
    if name not in self._handles:
      with self._graph.as_default(), tf.control_dependencies(None):
        self._handles[name] = shared_variables.handle(
          f'tfps_residual/{name}', shape=like.shape, dtype=like.dtype
        )
    return self._handles[name]
