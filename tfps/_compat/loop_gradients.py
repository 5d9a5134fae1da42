"""Gradients that pass a loop of a graph."""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow
from tensorflow.python.ops import while_v2

from tfps._compat import reads


def refused(tensor: tf.Tensor, refuse: Callable[[], None]) -> tf.Tensor:
  """Returns a tensor whose gradient is refused if it is that of a loop.

  A tape within the loop is not affected.

  Args:
    tensor: the tensor, of a branch or loop of a graph. Elsewhere it is returned
      as it is.
    refuse: is called when the gradient of a loop is traced; raises an error.
  """
  graph = ops.get_default_graph()
  if not isinstance(graph, control_flow.ControlFlowFuncGraph):
    return tensor

  @tf.custom_gradient
  def checked(tensor: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
    def check(gradient: tf.Tensor) -> tf.Tensor:
      if _is_in_gradient_of_loop():
        refuse()
      return gradient

    return tf.identity(tensor), check

  with reads.stop_recording():
    found: tf.Tensor = checked(tensor)
  return found


def _is_in_gradient_of_loop() -> bool:
  graph = ops.get_default_graph()
  while graph is not None:
    if isinstance(graph, while_v2._WhileBodyGradFuncGraph):
      return True
    graph = getattr(graph, 'outer_graph', None)
  return False
