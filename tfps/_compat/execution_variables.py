"""Variables of this process that are replaced by copies on remote workers."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_resource_variable_ops
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import shared_variables


class ExecutionVariable(resource_variable_ops.BaseResourceVariable):
  """Local variable that stands for a worker's copy while a step is traced.

  Metrics and seeds belong to this process, but a function that runs on a worker
  would reach back for each of their reads and writes. Within `copies` such a
  function uses a variable of the worker instead.

  Args:
    variable: the variable of this process.
  """

  def __init__(self, *, variable: tf.Variable) -> None:
    self._own = variable
    super().__init__(
      handle=variable.handle,
      name=variable.name.removesuffix(':0'),
      handle_name=variable.name.removesuffix(':0'),
      unique_id=variable._unique_id,
      shape=variable.shape,
      dtype=variable.dtype,
      trainable=variable.trainable,
      synchronization=variable.synchronization,
      aggregation=variable.aggregation,
      distribute_strategy=variable._distribute_strategy,
      in_graph_mode=False,
    )

  @property
  def handle(self) -> tf.Tensor:
    copies = _copies_in_use()
    return copies.get(self._unique_id, self._handle)

  def own_value(self) -> np.ndarray:
    """Returns the value in this process.

    `numpy` takes several times as long, which steps of many metrics would feel;
    so does `assign`.
    """
    value = gen_resource_variable_ops.read_variable_op(self._handle, self.dtype)
    return np.asarray(value)

  def set_own_value(self, value: np.ndarray) -> None:
    """Sets the value in this process.

    Args:
      value: array of the variable's type and shape; it must not change later.
    """
    gen_resource_variable_ops.assign_variable_op(self._handle, value)


# Looked up by graph, not by thread: TensorFlow traces a replica's step in a
# thread of its own, and branches and loops in graphs of their own.
_COPIES: Any = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def copies(
  variables: Sequence[ExecutionVariable],
) -> Iterator[list[tf.Tensor]]:
  """Makes the function that is being traced use the worker's copies.

  At a worker's second execution the copies have the values that the first one
  left.

  Args:
    variables: to be replaced within the context.

  Yields:
    The handles of the copies, in the order of the variables.
  """
  graph = ops.get_default_graph()
  _COPIES[graph] = {
    variable._unique_id: shared_variables.handle(
      f'tfps_copy/{variable._unique_id}',
      shape=variable.shape,
      dtype=variable.dtype,
    )
    for variable in variables
  }
  try:
    yield [_COPIES[graph][variable._unique_id] for variable in variables]
  finally:
    del _COPIES[graph]


def kept(
  tensors: Sequence[tf.Tensor], graph: Any
) -> Callable[[], list[tf.Tensor]]:
  """Keeps the last values of tensors that a loop's iterations compute.

  A loop only returns values whose types are known before its body is traced.

  Args:
    tensors: tensors of the graph that is being traced.
    graph: the function's, or one outside of it.

  Returns:
    A function that returns the values, to be called in `graph`.
  """
  if ops.get_default_graph() is graph:
    return lambda: list(tensors)
  handles = []
  for i, tensor in enumerate(tensors):
    with graph.as_default(), ops.control_dependencies(None):
      handle = shared_variables.handle(
        f'tfps_kept/{i}/{tensor.dtype.name}/{tensor.shape}',
        shape=tensor.shape,
        dtype=tensor.dtype,
      )
    handles.append(handle)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tensor)
  return lambda: [
    tf.raw_ops.ReadVariableOp(resource=handle, dtype=tensor.dtype)
    for handle, tensor in zip(handles, tensors, strict=True)
  ]


def _copies_in_use() -> dict[str, tf.Tensor]:
  graph = None if tf.executing_eagerly() else ops.get_default_graph()
  while graph is not None:
    if graph in _COPIES:
      found: dict[str, tf.Tensor] = _COPIES[graph]
      return found
    graph = getattr(graph, 'outer_graph', None)
  return {}
