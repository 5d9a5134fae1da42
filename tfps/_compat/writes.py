"""What operations of a function that is being traced write to, and where."""

import collections
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps_utils as resources


def num_operations() -> int:
  """How many operations the function has that is being traced."""
  return len(tf.compat.v1.get_default_graph().get_operations())


def by_device(first: int) -> dict[str, list[Any]]:
  """The operations that write to something, by the devices where that is.

  A call, a branch or a loop may write on several. Its last effect comes before
  what has it as a control input.

  Args:
    first: how many operations to leave out: the first of the function.
  """
  graph = tf.compat.v1.get_default_graph()
  devices = _Devices(graph)
  found: dict[str, list[Any]] = collections.defaultdict(list)
  for operation in graph.get_operations()[first:]:
    if any(tensor.dtype == tf.resource for tensor in operation.inputs):
      _, written = resources.get_read_write_resource_inputs(operation)
      for device in {devices.of(handle) for handle in written}:
        found[device].append(operation)
  return found


def current_device() -> str:
  """The device scope of this thread outside of functions; empty for none."""
  return context.context().device_name or ''


class _Devices:
  """Where the resources are that a function uses.

  Args:
    graph: of the function.
  """

  def __init__(self, graph: Any) -> None:
    # Within a loop, what stands for a resource stands for what stands for it.
    self._outer: dict[int, Any] = {}
    while isinstance(graph, tf.__internal__.FuncGraph):
      self._outer.update((id(inner), outer) for outer, inner in graph.captures)
      graph = graph.outer_graph

  def of(self, handle: Any) -> str:
    while (outer := self._outer.get(id(handle))) is not None:
      handle = outer
    return str(handle.device)
