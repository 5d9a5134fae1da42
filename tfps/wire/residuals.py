"""What a worker has not sent yet, kept on that worker.

It goes with the worker, which is harmless.
"""

from typing import Any

import tensorflow as tf

from tfps._compat import shared_variables
from tfps.wire import codecs


class Residuals:
  """The residuals of the function that is being traced, by name."""

  def __init__(self) -> None:
    self._graph = tf.compat.v1.get_default_graph()
    # One handle a function: TensorFlow keeps in order what shares it.
    self._handles: dict[str, tf.Tensor] = {}

  def encode(
    self, codec: codecs.ErrorFeedback, flat: tf.Tensor, name: str
  ) -> list[tf.Tensor]:
    """Encodes a buffer together with what was left of the one before.

    Args:
      codec: to encode by.
      flat: the buffer, of a length that is known.
      name: under which the rest is kept.
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
