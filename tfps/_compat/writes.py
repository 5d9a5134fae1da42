"""What operations of a function that is being traced write to, and where."""

import collections
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps_utils as resources

from tfps._compat import replicated_writes


def num_operations() -> int:
  """How many operations the function has that is being traced."""
  return len(tf.compat.v1.get_default_graph().get_operations())


class Place(NamedTuple):
  """Where something is that is written to.

  Attributes:
    device: its device.
    is_twin: whether it is the twin of a variable; see `twins`.
  """

  device: str
  is_twin: bool


def by_place(first: int) -> dict[Place, list[Any]]:
  """The operations that write to something, by where that is.

  A call, a branch or a loop may write in several places. Its last effect comes
  before what has it as a control input.

  Args:
    first: how many operations to leave out: the first of the function.
  """
  graph = tf.compat.v1.get_default_graph()
  handles = _Handles(graph)
  found: dict[Place, list[Any]] = collections.defaultdict(list)
  for operation in graph.get_operations()[first:]:
    if any(tensor.dtype == tf.resource for tensor in operation.inputs):
      _, written = resources.get_read_write_resource_inputs(operation)
      for place in {handles.place(handle) for handle in written}:
        found[place].append(operation)
  return found


def put_after(first: Any, operations: Iterable[Any]) -> None:
  """Has operations that write to variables wait for another one.

  Calls, branches and loops wait already for what they touch.
  """
  for operation in filter(replicated_writes.is_write, operations):
    operation._add_control_input(first)


def current_device() -> str:
  """The device scope of this thread outside of functions; empty for none."""
  return context.context().device_name or ''


def current_worker() -> int:
  """The index of the worker where this thread has functions executed."""
  spec: Any = tf.DeviceSpec.from_string(current_device())
  return int(spec.task)


class _Handles:
  """Those that a function has for what is outside of it.

  Args:
    graph: of the function.
  """

  def __init__(self, graph: Any) -> None:
    self._twins = replicated_writes.handles_of_all()
    # Within a loop, what stands for a resource stands for what stands for it.
    self._outer: dict[int, Any] = {}
    while isinstance(graph, tf.__internal__.FuncGraph):
      self._outer.update((id(inner), outer) for outer, inner in graph.captures)
      graph = graph.outer_graph

  def place(self, handle: Any) -> Place:
    while (outer := self._outer.get(id(handle))) is not None:
      handle = outer
    return Place(handle.device, id(handle) in self._twins)
