"""State of synchronized steps, in variables on one ps.

The protocol that changes it is described in `protocol`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps.updates import apply
from tfps.updates import device_calls
from tfps.updates import ps_lock
from tfps.updates import rows as rows_lib

MAX_POINTS = 4
MAX_WORKERS = 1024

# States of a worker: without work for now, done, excluded because it is lost,
# included in updates, included and executing.
AWAY, DONE, ABSENT, PRESENT, RUNNING = range(-2, 3)

NO_STEP = -1  # step of a worker that is between two executions

# Columns of `executions`: how many have ended, how many will have ended before
# more begin (negative if unknown), and whether updates are paused.
ENDED, LAST, PAUSED = range(3)


class Point(NamedTuple):
  """State of a point, at which gradients of all workers are added up.

  Attributes:
    version: version of the variables that the point updates; grows with each
      update and never decreases.
    goal: version at which there are no more updates.
    arrived: number of gradients for the next version that have arrived.
    leader: number of the worker that makes the next version plus 1, or 0.
    even: number of workers that wait at an even version.
    odd: number of workers that wait at an odd version.
    updates: number of updates.
    late: number of gradients that came too late for their update.
    short: number of updates made of fewer gradients than the policy wants.
    repeated: number of updates begun again because their leader was lost.
  """

  version: Any
  goal: Any
  arrived: Any
  leader: Any
  even: Any
  odd: Any
  updates: Any
  late: Any
  short: Any
  repeated: Any


class SyncState:
  """Variables on ps:0, all int64, which are changed under its lock.

  Args:
    make: makes a variable of a ps index, a name and a value.
    num_ps: number of ps.
    num_workers: number of workers that take part from the beginning.

  Attributes:
    points: a `Point` in each row.
    members: AWAY, DONE, ABSENT, PRESENT or RUNNING, for each worker.
    steps: for each worker, the version at which it came to the first point of
      its step, or NO_STEP.
    reached: for each worker, the number of points of its last step at which its
      gradients have arrived.
    clocks: number of steps of each worker, plus a number common to all.
    executions: ENDED, LAST and PAUSED.
    tags: on each ps, for each point, the version whose gradients are added up,
      and how many have been.

  Raises:
    ValueError: too many workers.
  """

  def __init__(
    self,
    make: Callable[..., Any],
    *,
    num_ps: int,
    num_workers: int,
  ) -> None:
    if num_workers > MAX_WORKERS:
      raise ValueError(
        f'The cluster has {num_workers} workers, but at most {MAX_WORKERS} can '
        'be synchronized. Use tfps.updates.Async.'
      )
    zeros = tf.zeros([MAX_POINTS, len(Point._fields)], tf.int64)
    self.points = make(0, 'tfps/sync/points', zeros)
    self.num_workers = num_workers
    members = self._all()
    self.members = make(0, 'tfps/sync/members', members)
    self.steps = make(0, 'tfps/sync/steps', self.no_steps())
    self.reached = make(0, 'tfps/sync/reached', tf.zeros_like(members))
    self.clocks = make(0, 'tfps/sync/clocks', tf.zeros_like(members))
    none = tf.constant([0, -1, 0], tf.int64)
    self.executions = make(0, 'tfps/sync/executions', none)
    zeros = tf.zeros([MAX_POINTS, 2], tf.int64)
    self.tags = [make(i, f'tfps/sync/tags/{i}', zeros) for i in range(num_ps)]

  @property
  def device(self) -> str:
    """Device of all variables but the tags."""
    device: str = self.points.device
    return device

  def locked(self, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a function under the lock of the state's ps.

    Args:
      function: returns tensors that it read and operations that wrote.
      *args: arguments of the function.

    Returns:
      The tensors; without a tuple if there is one.
    """
    found: list[Any] = []

    def job(*inputs: Any) -> Sequence[Any]:
      given = iter(inputs)
      read, written = function(
        *(next(given) if tf.is_tensor(arg) else arg for arg in args)
      )
      found.extend(read)
      return [*written, *read]

    tensors = [arg for arg in args if tf.is_tensor(arg)]
    ps_lock.run([ps_lock.Job(self.points, job, tensors)])
    return found[0] if len(found) == 1 else tuple(found)

  def function(
    self, function: Callable[..., Sequence[tf.Tensor]], *args: Any
  ) -> device_calls.DeviceFunction:
    """Returns a function on the state's ps; see `device_calls`."""
    return device_calls.DeviceFunction(self.points, function, *args)

  def read_points(self) -> list[Point]:
    """Returns all points, read by this process without the lock.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return [Point(*row) for row in self.points.numpy().tolist()]

  # The methods below are called under the lock.

  def point(self, number: int) -> Point:
    """Returns the state of a point."""
    row = rows_lib.read(self.points, tf.constant(number))
    return Point(*tf.unstack(row, num=len(Point._fields)))

  def set_point(self, number: int, point: Point) -> list[tf.Operation]:
    """Writes the state of a point."""
    return [rows_lib.write(self.points, tf.constant(number), tf.stack(point))]

  def set_member(self, worker: tf.Tensor, member: Any) -> list[tf.Operation]:
    """Sets a worker to AWAY, DONE, ABSENT, PRESENT or RUNNING."""
    return [rows_lib.write(self.members, worker, tf.cast(member, tf.int64))]

  def set_step(self, worker: tf.Tensor, step: Any) -> list[tf.Operation]:
    """Sets the step of a worker, or NO_STEP."""
    return [rows_lib.write(self.steps, worker, tf.cast(step, tf.int64))]

  def set_reached(self, worker: tf.Tensor, number: int) -> list[tf.Operation]:
    """Sets the number of points that a worker has reached in its step."""
    reached = tf.constant(number, tf.int64)
    return [rows_lib.write(self.reached, worker, reached)]

  def step_of(self, worker: tf.Tensor) -> tf.Tensor:
    """Returns the step of a worker, or NO_STEP."""
    return rows_lib.read(self.steps, worker)

  def no_steps(self) -> tf.Tensor:
    """Returns the steps of workers that are all between two executions."""
    return tf.fill([MAX_WORKERS], tf.constant(NO_STEP, tf.int64))

  def set_member_unless_done(
    self, worker: tf.Tensor, member: Any
  ) -> list[tf.Operation]:
    """Sets the state of a worker unless it is DONE."""
    now = self.member(worker)
    is_done = tf.equal(now, DONE)
    return self.set_member(
      worker, tf.where(is_done, now, tf.cast(member, tf.int64))
    )

  def member(self, worker: tf.Tensor) -> tf.Tensor:
    """Returns AWAY, DONE, ABSENT, PRESENT or RUNNING."""
    return rows_lib.read(self.members, worker)

  def send_away(self, are_busy: tf.Tensor) -> list[tf.Operation]:
    """Sets included workers that are not busy to AWAY."""
    members = apply.read(self.members)
    are_idle = (members > ABSENT) & tf.equal(are_busy, 0)
    away = tf.constant(AWAY, tf.int64)
    return [apply.write(self.members, tf.where(are_idle, away, members))]

  def expect_all_if_done(self) -> list[tf.Operation]:
    """Includes all workers again once all are DONE or all are AWAY.

    An excluded worker prevents it: it may come back and continue alone, and
    would wait for workers that are done.
    """
    members = apply.read(self.members)
    own = members[: self.num_workers]
    are_done = tf.reduce_all(tf.equal(own, DONE))
    are_done |= tf.reduce_all(tf.equal(own, AWAY))
    are_done &= tf.reduce_all(members <= ABSENT)
    return [apply.write(self.members, tf.where(are_done, self._all(), members))]

  def num_members(self) -> tf.Tensor:
    """Returns the number of included workers."""
    return tf.math.count_nonzero(apply.read(self.members) > ABSENT)

  def num_members_in(self, step: tf.Tensor, *, reached: int = 0) -> tf.Tensor:
    """Returns the number of included workers in a step.

    Args:
      step: version at which they came to the first point.
      reached: how many points they must have reached.
    """
    are_in = tf.equal(apply.read(self.steps), step)
    are_in &= apply.read(self.reached) >= reached
    are_members = apply.read(self.members) > ABSENT
    return tf.math.count_nonzero(are_in & are_members)

  def read_executions(self) -> list[tf.Tensor]:
    """Returns ENDED, LAST and PAUSED."""
    return list(tf.unstack(apply.read(self.executions), num=3))

  def set_executions(self, *values: tf.Tensor) -> list[tf.Operation]:
    """Writes ENDED, LAST and PAUSED."""
    return [apply.write(self.executions, tf.stack(values))]

  def _all(self) -> tf.Tensor:
    return tf.cast(tf.range(MAX_WORKERS) < self.num_workers, tf.int64)
