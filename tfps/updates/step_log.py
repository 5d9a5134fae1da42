"""Step log on the ps: how many steps of an execution have been applied there.

The loss of a task interrupts an execution after an unknown number of its steps.
So each step ends with one small write on each ps whose variables it updates:
after all other operations of the step there, it sets the execution's slot in a
ring buffer to the number of the step. The client reads the slots before it
repeats an execution.

A ring buffer is a variable. When variables are set back to a snapshot, so is
the ring buffer, and both agree. Replicas of variables have replicas of the ring
buffer, which tell the steps that were applied to the replicas.
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
from tfps.updates import rows as rows_lib
from tfps.updates import steppers

# A slot contains the sum of an execution's id and a number of steps. The bits
# of an id are, from the highest: a number, the slot, and zeros for the steps.
_STEP_BITS, _SLOT_BITS, _ID_BITS = 24, 12, 27
NUM_SLOTS = 1 << _SLOT_BITS
MAX_STEPS = (1 << _STEP_BITS) - 2

ID = tf.TensorSpec([], tf.int64)


def rings(make: Callable[..., Any], num_ps: int) -> list[Any]:
  """Makes the ring buffers, one on each ps.

  Args:
    make: makes a variable, given a ps, a name and a value.
    num_ps: how many ps there are.
  """
  empty = tf.zeros([NUM_SLOTS], tf.int64)
  return [make(ps, f'tfps/marks/{ps}', empty) for ps in range(num_ps)]


class StepLog:
  """Step log of the executions that one process starts.

  Args:
    rings: the ring buffers, one on each ps.
    slots: the slots to use, one after another; concurrent executions must have
      different ones.
    own: this process' task.
    tell: called with a task and how many steps its loss may apply twice.
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
    """Returns an id that no other execution of any process has."""
    self._number = (self._number + 1) % (1 << _ID_BITS)
    slot = next(self._slots) % NUM_SLOTS
    return (self._number << _SLOT_BITS | slot) << _STEP_BITS

  def task(self) -> str:
    """Returns the task on which this thread executes functions."""
    spec: Any = tf.DeviceSpec.from_string(writes.current_device())
    return self._own if spec.job is None else f'{spec.job}:{spec.task}'

  def writer(self, id: tf.Tensor) -> 'StepLogWriter':
    """Returns the log writer of a function that is being traced.

    Args:
      id: the execution's id, a scalar int64 argument of the function.
    """
    return StepLogWriter(self._rings, id)

  def read(self, id: int) -> list[int]:
    """Reads the log of an execution, once no more steps are being written.

    Args:
      id: the execution's.

    Returns:
      By ring buffer, and then by its replicas, the number of the last step
      that is logged, or 0.

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
    for ring in _with_replicas(self._rings):
      with tf.init_scope(), tf.device(ring.device):
        mark = rows_lib.read(ring, slot)
      steps = int(mark.numpy()) - id
      found.append(steps if 0 < steps <= MAX_STEPS + 1 else 0)
    return found


class StepLogWriter(steppers.Stepper):
  """Adds writes to the step log to a function that is being traced.

  Args:
    rings: the ring buffers, one on each ps.
    id: the execution's id, a scalar int64.

  Attributes:
    marked: the ring buffers that are written, as `StepLog.read` orders them.
  """

  waits = False

  def __init__(self, rings: Sequence[Any], id: tf.Tensor) -> None:
    self.marked: set[int] = set()
    self._rings = rings
    self._id = id
    self._latest: dict[int, tf.Operation] = {}
    self._ids: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
    self._places = {
      writes.Place(ring.device, index >= len(rings)): (index, ring)
      for index, ring in enumerate(_with_replicas(rings))
    }

  def state(self) -> tuple[()]:
    return ()

  def after(self, num_steps: Any, *state: tf.Tensor) -> 'StepLogWriter':
    del state
    writer = StepLogWriter(self._rings, self._id + tf.cast(num_steps, tf.int64))
    writer.marked = self.marked
    return writer

  @contextlib.contextmanager
  def step(self, number: Any) -> Iterator[None]:
    """Returns a context in which one step is traced.

    Args:
      number: the step's, from 1; an int, or int64 that the ps can have before
        the step has ended.
    """
    first = writes.num_operations()
    yield
    for place, operations in writes.by_place(first).items():
      if place in self._places:  # otherwise it is on no ps
        self._end(*self._places[place], operations, number)

  def _end(
    self,
    index: int,
    ring: Any,
    operations: Sequence[Any],
    number: tf.Tensor | int,
  ) -> None:
    # Operations without input from the worker, such as counting, would
    # otherwise run before those of the step before.
    if index in self._latest:
      writes.put_after(self._latest[index], operations)
    self.marked.add(index)
    with tf.control_dependencies(operations):
      self._latest[index] = self._mark(ring, number)

  def _mark(self, ring: Any, number: tf.Tensor | int) -> tf.Operation:
    with replicated_writes.suspended(), tf.device(ring.device):
      id, slot = self._id_on(ring.device)
      return rows_lib.write(ring, slot, id + number)

  def _id_on(self, device: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the id, sent to each ps once, and its slot."""
    if device not in self._ids:
      with tf.control_dependencies(None):
        id = tf.identity(self._id)
        slot = tf.bitwise.right_shift(id, tf.constant(_STEP_BITS, tf.int64))
        slot = tf.bitwise.bitwise_and(
          slot, tf.constant(NUM_SLOTS - 1, tf.int64)
        )
        self._ids[device] = id, slot
    return self._ids[device]


class NoStepLogWriter(steppers.Stepper):
  """Null object in place of a `StepLogWriter`: writes nothing."""

  waits = False

  def state(self) -> tuple[()]:
    return ()

  def after(self, num_steps: Any, *state: tf.Tensor) -> 'NoStepLogWriter':
    return self

  def step(self, number: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _with_replicas(rings: Sequence[Any]) -> list[Any]:
  found = [replicated_writes.replica_of(ring) for ring in rings]
  return [*rings, *(replica for replica in found if replica is not None)]
