"""Makes up for what the parameters have changed since a gradient was computed.

By the first terms of a Taylor series: the gradient at the parameters of now is
about that at the parameters of then, plus the Hessian times the change. The
square of the gradient stands for the Hessian's diagonal (Zheng et al., 2017,
"Asynchronous stochastic gradient descent with delay compensation",
https://arxiv.org/abs/1609.08326).
"""

from typing import Any

import tensorflow as tf

from tfps._compat import reads
from tfps.wire import step_transfers as step_transfers_lib


def pulled(variable: Any, gradient: Any) -> tf.Tensor | None:
  """The parameters that a gradient was computed by, on the worker.

  Args:
    variable: an ordinary one, or one shard.
    gradient: its own; rows are named once.

  Returns:
    A tensor like the gradient's values; None where nobody knows, outside of
    steps or where TensorFlow has read the variable.
  """
  steps = reads.reader()
  if not isinstance(steps, step_transfers_lib.Steps):
    return None
  return steps.pulled(variable, getattr(gradient, 'indices', None))


def compensated(
  variable: Any, gradient: Any, before: tf.Tensor, factor: float
) -> Any:
  """What the gradient is about now; on the variable's device.

  Args:
    variable: an ordinary one, or one shard.
    gradient: its own, as it was computed.
    before: the parameters by which.
    factor: by which the change counts.
  """
  factor = tf.constant(factor, variable.dtype)
  if not isinstance(gradient, tf.IndexedSlices):
    with tf.control_dependencies([gradient]):  # which may have taken long
      now = tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
      )
    return gradient + factor * tf.square(gradient) * (now - before)
  values, rows = gradient.values, gradient.indices
  with tf.control_dependencies([values]):
    now = tf.raw_ops.ResourceGather(
      resource=variable.handle, indices=rows, dtype=variable.dtype
    )
  change = now - before
  return tf.IndexedSlices(values + factor * tf.square(values) * change, rows)
