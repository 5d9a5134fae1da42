"""Operations of a function being traced, by the device they write to."""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps_utils as resources

from tfps._compat import replicated_writes


def num_operations() -> int:
  """Returns the number of operations of the function being traced."""
  return len(tf.compat.v1.get_default_graph().get_operations())


_is_write = replicated_writes.is_write

_LOCK, _RELEASE = 'MutexLock', 'ConsumeMutexLock'
# Not among the operations of which TensorFlow knows that they only read.
_READ = 'VarIsInitializedOp'


class Place(NamedTuple):
  """Location of a resource that is written to.

  Attributes:
    device: its device.
    is_replica: whether it is a variable's replica; see `replicated_writes`.
  """

  device: str
  is_replica: bool


def by_place(first: int) -> dict[Place, list[Any]]:
  """Returns the operations that write to resources, by their locations.

  A call, a branch or a loop may write in several places. Its last effect comes
  before the operations that have it as a control input.

  Args:
    first: how many operations of the function to skip.
  """
  graph = tf.compat.v1.get_default_graph()
  handles = _Handles(graph)
  found: dict[Place, list[Any]] = collections.defaultdict(list)
  for operation in graph.get_operations()[first:]:
    if operation.type != _READ and any(
      tensor.dtype == tf.resource for tensor in operation.inputs
    ):
      _, written = resources.get_read_write_resource_inputs(operation)
      for place in {handles.place(handle) for handle in written}:
        found[place].append(operation)
  return found


def put_after(first: Any, operations: Iterable[Any]) -> None:
  """Makes operations that write to variables wait for another operation.

  Calls, branches and loops wait already for the resources they use.
  """
  for operation in filter(_is_write, operations):
    operation._add_control_input(first)


def put_after_others(first: int, later: int) -> None:
  """Makes writes wait for those that were traced before on the same device.

  If another device is lost meanwhile, this one has not made them without the
  others. It costs no message.

  Args:
    first: how many operations of the function to skip.
    later: number of operations of the function before the writes that wait.
  """
  graph = tf.compat.v1.get_default_graph()
  waiting = {id(each) for each in graph.get_operations()[later:]}
  by_device: dict[str, list[Any]] = collections.defaultdict(list)
  for place, operations in by_place(first).items():
    by_device[place.device] += operations
  for operations in by_device.values():
    others = [each for each in operations if id(each) not in waiting]
    for each in operations:
      if id(each) in waiting and _is_write(each):
        each._add_control_inputs(others)


def put_last(first: int) -> None:
  """Makes a step's writes wait for the calls that were traced before them.

  A write of what the step does not compute, such as a count, would otherwise be
  done also if the step fails, for example because there is no batch. It costs
  no message where the same task was called, or has a write that waits already.

  What is done under a lock waits before the lock: to wait for another that the
  step takes would be a deadlock.

  Args:
    first: how many operations of the function to skip.
  """
  graph = tf.compat.v1.get_default_graph()
  operations = graph.get_operations()[first:]
  order = {id(each): i for i, each in enumerate(operations)}
  places = [*by_place(first).values()]
  calls = [each for place in places for each in place if not _is_write(each)]
  unlocked = [each for each in calls if each.type != _LOCK]
  locked = {id(each) for each in _within_locks(operations)}
  waits = _Waits(order, calls)

  def earlier(than: Any, calls: Iterable[Any]) -> list[Any]:
    return [each for each in calls if order[id(each)] < order[id(than)]]

  for place in places:
    own = [each for each in place if not _is_write(each)]
    done: list[Any] = []
    for operation in filter(_is_write, place):
      if id(operation) not in locked:
        needed = earlier(operation, own) or earlier(operation, calls)
        waits.put_after(operation, needed, done)
        done.append(operation)
    for lock in place:
      if lock.type == _LOCK and not waits.of(lock) & waits.bits(unlocked):
        lock._add_control_inputs(earlier(lock, unlocked))


class _Waits:
  """Calls that the operations of a step wait for, each a bit of a number.

  Args:
    order: has the ids of the step's operations.
    calls: the calls.
  """

  def __init__(self, order: Mapping[int, int], calls: Iterable[Any]) -> None:
    self._order = order
    self._bits = {id(call): 1 << i for i, call in enumerate(calls)}
    self._found: dict[int, int] = {}

  def bits(self, calls: Iterable[Any]) -> int:
    """Returns the bits of some of the calls."""
    return sum(self._bits[id(call)] for call in calls)

  def of(self, operation: Any) -> int:
    """Returns the bits of the calls that an operation waits for."""
    left = [operation]
    while left:
      each = left[-1]
      before = self._before(each) if id(each) not in self._found else []
      if unknown := [o for o in before if id(o) not in self._found]:
        left += unknown
        continue
      left.pop()
      found = self._found.setdefault(id(each), 0)
      for other in before:
        found |= self._found[id(other)] | self._bits.get(id(other), 0)
      self._found[id(each)] = found
    return self._found[id(operation)]

  def put_after(
    self, operation: Any, calls: Iterable[Any], others: Iterable[Any]
  ) -> None:
    """Makes an operation wait for calls, unless it does already.

    Args:
      operation: the operation.
      calls: the calls.
      others: operations that were traced before it. If one waits for the calls,
        the operation waits for that one.
    """
    present = self.of(operation)
    missing = [call for call in calls if not present & self._bits[id(call)]]
    wanted = self.bits(missing)
    if wanted:
      instead = [o for o in others if not wanted & ~self.of(o)]
      operation._add_control_inputs(instead[:1] or missing)
      self._found[id(operation)] = present | wanted

  def _before(self, operation: Any) -> list[Any]:
    """Returns the step's operations that one waits for directly."""
    inputs = [tensor.op for tensor in operation.inputs]
    return [
      each
      for each in (*inputs, *operation.control_inputs)
      if id(each) in self._order
    ]


def _within_locks(operations: Iterable[Any]) -> Iterator[Any]:
  """Yields operations that were traced after a lock and before its release."""
  is_locked = False
  for operation in operations:
    is_locked = operation.type == _LOCK or (
      is_locked and operation.type != _RELEASE
    )
    if is_locked:
      yield operation


def current_device() -> str:
  """Returns this thread's device scope outside of functions; empty for none."""
  return context.context().device_name or ''


def current_worker() -> int:
  """Returns the index of the worker in this thread's device scope."""
  spec: Any = tf.DeviceSpec.from_string(current_device())
  return int(spec.task)


class _Handles:
  """Handles in a function's graph, resolved to those outside of it.

  Args:
    graph: of the function.
  """

  def __init__(self, graph: Any) -> None:
    self._replicas = replicated_writes.replica_handles()
    # A loop's captures are captures of the outer graph's captures.
    self._outer: dict[int, Any] = {}
    while isinstance(graph, tf.__internal__.FuncGraph):
      self._outer.update((id(inner), outer) for outer, inner in graph.captures)
      graph = graph.outer_graph

  def place(self, handle: Any) -> Place:
    while (outer := self._outer.get(id(handle))) is not None:
      handle = outer
    return Place(handle.device, id(handle) in self._replicas)
