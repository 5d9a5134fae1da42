"""Table of workers that wait for each other, in variables on one ps."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps.updates import apply
from tfps.updates import rows as rows_lib

MAX_WORKERS = 1024

# States of a worker: without work for now, done, excluded because it is lost,
# included in updates, included and executing.
AWAY, DONE, ABSENT, PRESENT, RUNNING = range(-2, 3)

NO_STEP = -1  # step of a worker that is between two executions


class WorkerTable:
  """State and step of each worker, int64 variables on ps:0.

  Its methods are called under the lock of `SyncState`, and return tensors that
  they read or operations that write.

  Args:
    make: makes a variable of a ps index, a name and a value.
    num_workers: number of workers that take part from the beginning.

  Attributes:
    num_workers: as given.
    members: AWAY, DONE, ABSENT, PRESENT or RUNNING, for each worker.
    steps: for each worker, the version at which it came to the first point of
      its step, or NO_STEP.
    reached: for each worker, the number of points of its last step at which its
      gradients have arrived.
    clocks: number of steps of each worker, plus a number common to all.

  Raises:
    ValueError: too many workers.
  """

  def __init__(self, make: Callable[..., Any], num_workers: int) -> None:
    if num_workers > MAX_WORKERS:
      raise ValueError(
        f'The cluster has {num_workers} workers, but at most {MAX_WORKERS} can '
        'be synchronized. Use tfps.updates.Async.'
      )
    self.num_workers = num_workers
    members = self._all()
    self.members = make(0, 'tfps/sync/members', members)
    self.steps = make(0, 'tfps/sync/steps', self.no_steps())
    self.reached = make(0, 'tfps/sync/reached', tf.zeros_like(members))
    self.clocks = make(0, 'tfps/sync/clocks', tf.zeros_like(members))

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

  def _all(self) -> tf.Tensor:
    return tf.cast(tf.range(MAX_WORKERS) < self.num_workers, tf.int64)
