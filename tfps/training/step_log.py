"""Marks on the ps: how many steps of an execution have been applied there.

When a task is lost, nobody knows how far an execution had come that it cut
short. So each step ends with one small operation on each ps that it has written
to: once all else of the step is done there, the execution's slot in a ring
tells its number. Who begins the execution again looks there first.

A ring is a variable like any other. Where variables are set back, so are the
marks, and they are right again. Where variables have twins, the ring's tells
what those have.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import random
import time
from typing import Any

import tensorflow as tf

from tfps._compat import replicated_writes
from tfps._compat import writes
from tfps._utils import timeouts

# A mark is an id and a number of steps. An id has, in its lowest bits, the slot
# for its marks.
_STEP_BITS, _SLOT_BITS, _ID_BITS = 24, 12, 27
NUM_SLOTS = 1 << _SLOT_BITS
MAX_STEPS = (1 << _STEP_BITS) - 2

ID = tf.TensorSpec([], tf.int64)


def rings(make: Callable[..., Any], num_ps: int) -> list[Any]:
  """One on each ps.

  Args:
    make: makes a variable; gets a ps, a name and a value.
    num_ps: how many ps there are.
  """
  empty = tf.zeros([NUM_SLOTS], tf.int64)
  return [make(ps, f'tfps/marks/{ps}', empty) for ps in range(num_ps)]


class StepLog:
  """Those of the executions that one process begins.

  Args:
    rings: one on each ps.
    slots: which of a ring's to use, one after another; those of executions that
      are under way at the same time must differ.
    own: this process' task.
    tell: gets a task, and how many steps were applied twice because of it.
  """

  def __init__(
    self,
    rings: Sequence[Any],
    *,
    slots: Iterable[int],
    own: str,
    tell: Callable[[str, int], object],
  ) -> None:
    self.tell = tell
    self._rings = list(rings)
    self._slots = iter(slots)
    self._own = own
    self._number = random.SystemRandom().getrandbits(_ID_BITS)

  def new_id(self) -> int:
    """An id that no other execution has, of whatever process."""
    self._number = (self._number + 1) % (1 << _ID_BITS)
    slot = next(self._slots) % NUM_SLOTS
    return (self._number << _SLOT_BITS | slot) << _STEP_BITS

  def task(self) -> str:
    """The task where this thread has functions executed."""
    spec: Any = tf.DeviceSpec.from_string(writes.current_device())
    return self._own if spec.job is None else f'{spec.job}:{spec.task}'

  def marking(self, id: tf.Tensor) -> 'Marking':
    """For the function that is being traced, whose id an argument is."""
    return Marking(self._rings, id)

  def read(self, id: int) -> list[int]:
    """By ring, the number of the last step that is marked, or 0.

    After the rings come their twins. Returns once nothing changes any more.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    deadline = time.monotonic() + timeouts.current().step_settle_secs
    found = self._read(id)
    while True:
      time.sleep(timeouts.current().step_quiet_secs)
      before, found = found, self._read(id)
      if found == before or time.monotonic() > deadline:
        return found

  def _read(self, id: int) -> list[int]:
    slot = id >> _STEP_BITS & (NUM_SLOTS - 1)
    found = []
    for ring in _with_twins(self._rings):
      with tf.init_scope(), tf.device(ring.device):
        mark = tf.raw_ops.ResourceGather(
          resource=ring.handle, indices=slot, dtype=tf.int64
        )
      steps = int(mark.numpy()) - id
      found.append(steps if 0 < steps <= MAX_STEPS + 1 else 0)
    return found


class Marking:
  """Marks the steps of one function while it is being traced.

  Args:
    rings: one on each ps.
    id: a scalar, of the execution.

  Attributes:
    marked: the rings in which steps have been marked, as `Marks.read` numbers
      them.
  """

  def __init__(self, rings: Sequence[Any], id: tf.Tensor) -> None:
    self.marked: set[int] = set()
    self._rings = rings
    self._id = id
    self._latest: dict[int, tf.Operation] = {}
    self._ids: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
    self._places = {
      writes.Place(ring.device, index >= len(rings)): (index, ring)
      for index, ring in enumerate(_with_twins(rings))
    }

  def after(self, num_steps: tf.Tensor | int) -> 'Marking':
    """One that counts on from so many steps, such as those before a loop's."""
    marking = Marking(self._rings, self._id + tf.cast(num_steps, tf.int64))
    marking.marked = self.marked
    return marking

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """A step to be traced within; its number begins with 1."""
    first = writes.num_operations()
    yield
    for place, operations in writes.by_place(first).items():
      if place in self._places:  # else it is on no ps
        self._end(*self._places[place], operations, number)

  def _end(
    self, index: int, ring: Any, operations: Sequence[Any], number: int
  ) -> None:
    # What needs nothing from the worker, such as counting, would run ahead.
    if index in self._latest:
      writes.put_after(self._latest[index], operations)
    self.marked.add(index)
    with tf.control_dependencies(operations):
      self._latest[index] = self._mark(ring, number)

  def _mark(self, ring: Any, number: int) -> tf.Operation:
    with replicated_writes.suspended(), tf.device(ring.device):
      id, slot = self._id_on(ring.device)
      return tf.raw_ops.ResourceScatterUpdate(
        resource=ring.handle, indices=slot, updates=id + number
      )

  def _id_on(self, device: str) -> tuple[tf.Tensor, tf.Tensor]:
    """The id, which crosses to each ps once, and its slot."""
    if device not in self._ids:
      with tf.control_dependencies(None):
        id = tf.identity(self._id)
        slot = tf.bitwise.right_shift(id, tf.constant(_STEP_BITS, tf.int64))
        slot = tf.bitwise.bitwise_and(
          slot, tf.constant(NUM_SLOTS - 1, tf.int64)
        )
        self._ids[device] = id, slot
    return self._ids[device]


class Unmarked:
  """Stands for a `Marking` where there are to be no marks."""

  marked: frozenset[int] = frozenset()

  def after(self, num_steps: tf.Tensor | int) -> 'Unmarked':
    return self

  def step(self, number: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def are_made(num_steps: int) -> bool:
  """Whether executions of so many steps are marked.

  One step is at most repeated as a whole, and a mark would cost it most.
  """
  return 1 < num_steps <= MAX_STEPS


def of(strategy: tf.distribute.Strategy) -> StepLog | None:
  """A strategy's; None without a `Recovery`."""
  found: StepLog | None = getattr(strategy, 'marks', None)
  return found


def id_spec(
  strategy: tf.distribute.Strategy, num_steps: int
) -> tuple[tf.TensorSpec, ...]:
  """The argument of a function of so many steps that is its id, if any."""
  return (ID,) if of(strategy) is not None and are_made(num_steps) else ()


def marking(
  strategy: tf.distribute.Strategy, id: tf.Tensor | None = None
) -> Marking | Unmarked:
  """For the function that is being traced; no id, no marks."""
  own = of(strategy)
  return Unmarked() if own is None or id is None else own.marking(id)


def _with_twins(rings: Sequence[Any]) -> list[Any]:
  found = [replicated_writes.replica_of(ring) for ring in rings]
  return [*rings, *(twin for twin in found if twin is not None)]
