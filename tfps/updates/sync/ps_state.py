"""What workers that wait for each other know in common, on one ps."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps.updates import apply
from tfps.updates import ps_lock

MAX_POINTS = 4
MAX_WORKERS = 1024

# Of a worker: it has nothing to do now, it has said that it is done, it is not
# waited for, it is, and it executes something, too.
AWAY, DONE, ABSENT, PRESENT, RUNNING = range(-2, 3)

NO_STEP = -1  # of a worker that is between two executions

# Of executions: how many have ended, how many will have before more begin, or
# a negative number, and whether no updates are to be made.
ENDED, LAST, PAUSED = range(3)


class Point(NamedTuple):
  """How far a point is, at which the gradients of all workers meet.

  Attributes:
    version: of what the point's optimizer updates; grows with each update, and
      never goes back.
    goal: the version at which there are no more updates.
    arrived: how many gradients for the next version have come.
    leader: the worker that makes the next version, plus one; or 0.
    even: how many wait for a version that is even.
    odd: likewise.
    updates: how many were made.
    late: how many gradients came too late for theirs.
    short: how many updates were made of fewer gradients than asked for.
    repeated: how many were made once more, for their worker was lost.
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
  """Variables on ps:0, which are changed by who has its lock.

  Args:
    make: makes a variable; gets a ps, a name and a value.
    num_ps: how many ps there are.
    num_workers: those that are waited for from the beginning.

  Attributes:
    points: a `Point` in each row, int64.
    members: AWAY, DONE, ABSENT, PRESENT or RUNNING, of each worker; int64.
    steps: the version at which each worker came to the first point of the step
      that it is in, or NO_STEP; int64.
    clocks: how many steps each worker has done, and a number that is common to
      all; int64.
    executions: ENDED, LAST and PAUSED, int64.
    tags: on each ps, for each point, the version for which gradients have come,
      and how many; int64.
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
        f'{num_workers} workers: {MAX_WORKERS} at most can wait for each other.'
      )
    zeros = tf.zeros([MAX_POINTS, len(Point._fields)], tf.int64)
    self.points = make(0, 'tfps/board/points', zeros)
    self.num_workers = num_workers
    members = self._all()
    self.members = make(0, 'tfps/board/members', members)
    self.steps = make(0, 'tfps/board/steps', self.no_steps())
    self.clocks = make(0, 'tfps/board/clocks', tf.zeros_like(members))
    none = tf.constant([0, -1, 0], tf.int64)
    self.executions = make(0, 'tfps/board/executions', none)
    zeros = tf.zeros([MAX_POINTS, 2], tf.int64)
    self.tags = [make(i, f'tfps/board/tags/{i}', zeros) for i in range(num_ps)]

  @property
  def device(self) -> str:
    """Where all but the tags is."""
    device: str = self.points.device
    return device

  def locked(self, function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns that is called with the lock.

    Args:
      function: returns what it read, and what it wrote as operations.
      *args: for the function.
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

  # For who has it.

  def point(self, number: int) -> Point:
    """A point's state."""
    row = tf.raw_ops.ResourceGather(
      resource=self.points.handle, indices=tf.constant(number), dtype=tf.int64
    )
    return Point(*tf.unstack(row, num=len(Point._fields)))

  def set_point(self, number: int, point: Point) -> list[tf.Operation]:
    """Writes it."""
    return [
      tf.raw_ops.ResourceScatterUpdate(
        resource=self.points.handle,
        indices=tf.constant(number),
        updates=tf.stack(point),
      )
    ]

  def note(self, worker: tf.Tensor, member: Any) -> list[tf.Operation]:
    """Says whether a worker is AWAY, DONE, ABSENT, PRESENT or RUNNING."""
    return [
      tf.raw_ops.ResourceScatterUpdate(
        resource=self.members.handle,
        indices=worker,
        updates=tf.cast(member, tf.int64),
      )
    ]

  def note_step(self, worker: tf.Tensor, step: Any) -> list[tf.Operation]:
    """Says in which step a worker is, or NO_STEP."""
    return [
      tf.raw_ops.ResourceScatterUpdate(
        resource=self.steps.handle,
        indices=worker,
        updates=tf.cast(step, tf.int64),
      )
    ]

  def step_of(self, worker: tf.Tensor) -> tf.Tensor:
    """In which step a worker is, or NO_STEP."""
    return tf.raw_ops.ResourceGather(
      resource=self.steps.handle, indices=worker, dtype=tf.int64
    )

  def no_steps(self) -> tf.Tensor:
    """The steps, if nobody is in one."""
    return tf.fill([MAX_WORKERS], tf.constant(NO_STEP, tf.int64))

  def note_unless_done(
    self, worker: tf.Tensor, member: Any
  ) -> list[tf.Operation]:
    """Says that of a worker, if it has not said that it is done."""
    now = self.member(worker)
    is_done = tf.equal(now, DONE)
    return self.note(worker, tf.where(is_done, now, tf.cast(member, tf.int64)))

  def member(self, worker: tf.Tensor) -> tf.Tensor:
    """What a worker is: AWAY, DONE, ABSENT, PRESENT or RUNNING."""
    return tf.raw_ops.ResourceGather(
      resource=self.members.handle, indices=worker, dtype=tf.int64
    )

  def send_away(self, are_busy: tf.Tensor) -> list[tf.Operation]:
    """Says that those who are waited for and not busy are AWAY."""
    members = apply.read(self.members)
    are_idle = (members > ABSENT) & tf.equal(are_busy, 0)
    away = tf.constant(AWAY, tf.int64)
    return [apply.write(self.members, tf.where(are_idle, away, members))]

  def expect_all_if_done(self) -> list[tf.Operation]:
    """Once all are done, or away, has who comes next wait for all again.

    Not if one was left out: it may be back and go on alone, and would wait for
    those that are done.
    """
    members = apply.read(self.members)
    own = members[: self.num_workers]
    are_done = tf.reduce_all(tf.equal(own, DONE))
    are_done |= tf.reduce_all(tf.equal(own, AWAY))
    are_done &= tf.reduce_all(members <= ABSENT)
    return [apply.write(self.members, tf.where(are_done, self._all(), members))]

  def num_members(self) -> tf.Tensor:
    """How many workers are waited for."""
    return tf.math.count_nonzero(apply.read(self.members) > ABSENT)

  def num_members_in(self, step: tf.Tensor) -> tf.Tensor:
    """How many of them are in a step."""
    are_in = tf.equal(apply.read(self.steps), step)
    are_members = apply.read(self.members) > ABSENT
    return tf.math.count_nonzero(are_in & are_members)

  def read_executions(self) -> list[tf.Tensor]:
    """ENDED, LAST and PAUSED."""
    return list(tf.unstack(apply.read(self.executions), num=3))

  def set_executions(self, *values: tf.Tensor) -> list[tf.Operation]:
    """Writes them."""
    return [apply.write(self.executions, tf.stack(values))]

  def _all(self) -> tf.Tensor:
    return tf.cast(tf.range(MAX_WORKERS) < self.num_workers, tf.int64)
