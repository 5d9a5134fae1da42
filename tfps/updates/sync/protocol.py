"""Protocol of synchronized steps: transitions of the state on ps:0.

States (`ps_state.SyncState`): each time that a step has an optimizer apply
gradients is a point. A point has a version, the number of gradients that have
arrived for the next one, and a leader or none. A worker is AWAY (without work),
DONE, ABSENT (lost), PRESENT or RUNNING; updates wait for the last two.

Messages: `begin` and `end` of an execution; `look` when a worker's gradients
have arrived on all ps, and each time that it is released; `release` by the
leader once it has made the version; `leave_step`, `cut_short`, `leave_out`,
`dismiss` and `take_in` of a worker; `rest` when no more executions begin for
now; `pause` by a snapshot; `start` before training and after a restore.

The worker that completes the quorum leads: it makes the update, while the
others wait. At the first point all included workers are waited for; at later
ones, those that came to the first in the same step and are not late since. A
worker that begins or returns is admitted between two updates of the first
point, so that what it computes is part of the next.

Invariant: a version is made once, by one leader, of the gradients of at least
the quorum, each computed from the version before. Gradients that any ps has
dropped are counted as late. Versions never decrease, and a `start` closes the
sums of before, so that a worker from before it can change nothing.

A gradient on its way while an update is made may be computed from variables
that one ps has updated, and be in the sum of another. A leader that is lost may
have updated some ps, which `repeated` counts.

Each transition runs under the lock of ps:0, in a function that is being traced.
"""

from collections.abc import Sequence
import functools
from typing import Any

import tensorflow as tf

from tfps.updates import apply
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync import wait_queue
from tfps.updates.sync import worker_table
from tfps.updates.sync.ps_state import Point


class SyncProtocol:
  """Transitions of the state, each run under its lock.

  Each method returns the tensors that it read and the operations that wrote.

  Args:
    state: synchronization state on the ps.
    queues: queue of waiting workers of each point.
    spare: number of backup workers, for which an update need not wait.
  """

  def __init__(
    self,
    state: ps_state_lib.SyncState,
    queues: Sequence[wait_queue.WaitQueue],
    *,
    spare: int,
  ) -> None:
    self._state = state
    self._queues = queues
    self._spare = spare
    # Traced once, for most transitions.
    self._open = tf.function(
      functools.partial(wait_queue.release, queues), autograph=False
    )

  def begin(self, worker: tf.Tensor) -> Any:
    """Admits a worker; reads whether it waits, the versions, and the quorum.

    Args:
      worker: the worker's number, an int64 scalar.
    """
    points, led = _without_lead(self._points(), worker)
    # If it failed within a step, others may be waiting for it there.
    was_within = self._state.workers.step_of(worker) > worker_table.NO_STEP
    was_within |= led
    with tf.control_dependencies([was_within]):
      noted = self._state.workers.set_member(worker, worker_table.RUNNING)
      noted += self._state.workers.set_step(worker, worker_table.NO_STEP)
    waits = self._is_led(points)
    mine = tf.one_hot(0, ps_state_lib.MAX_POINTS, dtype=tf.int64) * _count(
      waits
    )
    is_even = _count(tf.equal(points.version[0] % 2, 0))
    points = points._replace(
      even=points.even + mine * is_even, odd=points.odd + mine * (1 - is_even)
    )
    taken = self._release_all(was_within, points)
    with tf.control_dependencies(noted):
      return (waits, points.version, self._quorum()), noted + taken

  def _is_led(self, points: Point) -> tf.Tensor:
    """Returns whether to wait for the update of the first point."""
    if self._spare:
      return tf.constant(value=False)
    return points.leader[0] > 0

  def end(self, worker: tf.Tensor) -> Any:
    """Counts an execution of a worker."""
    noted = self._state.workers.set_member(worker, worker_table.PRESENT)
    noted += self._state.workers.set_step(worker, worker_table.NO_STEP)
    ended, last, paused = self._state.read_executions()
    written = self._state.set_executions(ended + 1, last, paused)
    points = self._points()
    # Others may be waiting for a point that it has not reached.
    are_within = tf.reduce_any(points.even[1:] + points.odd[1:] > 0)
    are_to_look = (last >= 0) | are_within
    taken = self._release_all(are_to_look, points)
    return (are_to_look,), noted + written + taken

  def leave_step(
    self, number: int, worker: tf.Tensor, version: tf.Tensor
  ) -> Any:
    """Takes a worker out of its step if it is late at a point; reads that.

    Args:
      number: number of the point.
      worker: the worker's number, an int64 scalar.
      version: version with which it computed gradients.
    """
    is_late = tf.not_equal(self._state.point(number).version, version)
    none = tf.constant(worker_table.NO_STEP, tf.int64)
    step = tf.where(is_late, none, self._state.workers.step_of(worker))
    taken = self._release_all(is_late)
    return (is_late,), self._state.workers.set_step(worker, step) + taken

  def look(
    self,
    number: int,
    worker: tf.Tensor,
    version: tf.Tensor,
    step: tf.Tensor,
    is_added: tf.Tensor,
    arrives: int,
  ) -> Any:
    """Decides whether a worker leads, waits or continues at a point.

    Args:
      number: number of the point.
      worker: the worker's number, an int64 scalar.
      version: version with which it computed gradients.
      step: version of the first point at which its step began.
      is_added: whether its gradients were added up on all ps.
      arrives: 1 when its gradients have arrived, 0 when it was released.
    """
    point = self._state.point(number)
    is_next = tf.equal(point.version, version)
    is_current = is_next & (point.version < point.goal)
    arrived = point.arrived + _count(is_current) * arrives
    noted = self._state.workers.set_member(worker, worker_table.RUNNING)
    begins = arrives > 0 and number == 0
    noted += self._note_arrival(worker, step, is_current, begins=begins)
    if arrives:
      noted += self._state.workers.set_reached(worker, number + 1)
    with tf.control_dependencies(noted):
      quorum = enough = self._quorum()
      come = arrived
      if number:
        within = self._state.workers.num_members_in(step)
        enough = tf.maximum(tf.minimum(quorum, within), 1)
      if not self._spare:
        # Gradients of lost workers must not replace those of others.
        come = self._state.workers.num_members_in(step, reached=number + 1)
    is_paused = tf.not_equal(
      self._state.read_executions()[ps_state_lib.PAUSED], 0
    )
    if number:
      is_paused &= ~self._may_have_more_points(self._points())
    leads = is_current & (come >= enough) & tf.equal(point.leader, 0)
    leads &= ~is_paused
    waits = is_current & ~leads
    is_even = tf.equal(version % 2, 0)
    new = point._replace(
      arrived=arrived,
      leader=tf.where(leads, worker + 1, point.leader),
      even=point.even + _count(waits & is_even),
      odd=point.odd + _count(waits & ~is_even),
      late=point.late + _count(~is_added) * arrives,
    )
    written = self._state.set_point(number, new)
    next_version = tf.where(waits, version, point.version)
    # With backup workers late by design, unless there are no more updates.
    counts = is_current | ~is_next if self._spare else is_added
    found = (leads, waits, next_version, quorum, enough, counts)
    return found, noted + written

  def _note_arrival(
    self,
    worker: tf.Tensor,
    step: tf.Tensor,
    is_current: tf.Tensor,
    *,
    begins: bool,
  ) -> list[tf.Operation]:
    """Sets the step of a worker that arrives, or waits though excluded."""
    if not begins:
      step = tf.where(is_current, step, self._state.workers.step_of(worker))
    return self._state.workers.set_step(worker, step)

  def release(self, number: int, version: tf.Tensor, enough: tf.Tensor) -> Any:
    """Publishes the next version of a point and releases waiting workers.

    Args:
      number: number of the point.
      version: version with which the gradients were computed.
      enough: number of gradients of which the new version was made.
    """
    wanted = self._wanted(self._state.workers.num_members())
    point = self._state.point(number)
    is_next = tf.equal(point.version, version)  # unless there was a `start`
    is_even = tf.equal(version % 2, 0)
    zero = tf.zeros([], tf.int64)
    new = point._replace(
      version=point.version + _count(is_next),
      arrived=tf.where(is_next, zero, point.arrived),
      leader=tf.where(is_next, zero, point.leader),
      even=tf.where(is_even, zero, point.even),
      odd=tf.where(is_even, point.odd, zero),
      updates=point.updates + _count(is_next),
      short=point.short + _count(is_next & (enough < wanted)),
    )
    waiting = tf.stack([point.even - new.even, point.odd - new.odd])
    opened = wait_queue.release([self._queues[number]], waiting)
    with tf.control_dependencies([opened]):
      written = self._state.set_point(number, new)
    return (new.version, self._quorum()), written

  def leave_out(self, worker: tf.Tensor, member: tf.Tensor) -> Any:
    """Sets the state of a worker and gives up an update that it leads.

    Args:
      worker: the worker's number, an int64 scalar.
      member: its new state, unless it is DONE.
    """
    away = tf.constant(worker_table.AWAY, tf.int64)
    was_away = tf.equal(self._state.workers.member(worker), away)
    is_news = ~was_away | tf.not_equal(member, away)
    with tf.control_dependencies([was_away]):
      written = self._state.workers.set_member_unless_done(worker, member)
    with tf.control_dependencies(written):
      written += self._state.workers.expect_all_if_done()
    written += self._state.workers.set_step(worker, worker_table.NO_STEP)
    points, _ = _without_lead(self._points(), worker)
    return (points.version,), written + self._release_all(is_news, points)

  def dismiss(self, are_busy: tf.Tensor) -> Any:
    """Sets included workers to AWAY where `are_busy` is 0."""
    written = self._state.workers.send_away(are_busy)
    with tf.control_dependencies(written):
      written += self._state.workers.expect_all_if_done()
    return (are_busy[0],), written + self._release_all(True)

  def take_in(self, worker: tf.Tensor) -> Any:
    """Includes a worker in updates."""
    return (worker,), self._state.workers.set_member(
      worker, worker_table.PRESENT
    )

  def rest(self, last: tf.Tensor) -> Any:
    """Sets the number of executions after which no more begin for now."""
    ended, _, paused = self._state.read_executions()
    written = self._state.set_executions(ended, last, paused)
    return (ended,), written + self._release_all(True)

  def pause(self, value: tf.Tensor) -> Any:
    """Sets whether updates are paused.

    Reads the number of updates that are running or will be made by workers
    within a step, and the previous value.
    """
    ended, last, before = self._state.read_executions()
    written = self._state.set_executions(ended, last, value)
    points = self._points()
    number = tf.math.count_nonzero(points.leader)
    # Workers past the first point of their step, and perhaps past all.
    within = self._state.workers.num_members_in(points.version[0] - 1)
    number += within * _count(self._may_have_more_points(points))
    found = tf.stack([number, before])
    return (found,), written + self._release_all(tf.equal(value, 0), points)

  def cut_short(self, worker: tf.Tensor) -> Any:
    """Takes a worker out of its step, and gives up an update that it leads."""
    written = self._state.workers.set_step(worker, worker_table.NO_STEP)
    points, _ = _without_lead(self._points(), worker)
    return (worker,), written + self._release_all(True, points)

  def _may_have_more_points(self, points: Point) -> tf.Tensor:
    """Returns whether a step may make updates at other points than the first.

    Only the second update of the first point shows that it is the only one:
    workers that wait at another would not have come back to it.
    """
    return tf.reduce_any(points.updates[1:] > 0) | (points.updates[0] < 2)

  def start(self, version: tf.Tensor, updates: tf.Tensor) -> Any:
    """Resets the state.

    Args:
      version: next version; larger than all before, by time.
      updates: limit of the number of updates.
    """
    points = self._points()
    zeros = tf.zeros_like(points.version)
    # Sums of the version in between are closed.
    versions = tf.maximum(points.version + 2, version)
    points = points._replace(
      version=versions, goal=versions + updates, arrived=zeros, leader=zeros
    )
    zero = tf.zeros([], tf.int64)
    written = self._state.set_executions(zero, zero - 1, zero)
    clocks = tf.fill([worker_table.MAX_WORKERS], versions[0])
    written.append(apply.write(self._state.workers.clocks, clocks))
    written.append(
      apply.write(self._state.workers.steps, self._state.workers.no_steps())
    )
    return (versions,), written + self._release_all(True, points)

  def _release_all(
    self, if_any: tf.Tensor | bool, points: Point | None = None
  ) -> list[Any]:
    """Releases the workers that wait at any point, so that they look again.

    Args:
      if_any: whether to release them.
      points: points to write; None keeps them.
    """
    points = points or self._points()
    released = _count(tf.convert_to_tensor(if_any))
    kept = 1 - released
    opened = self._open(tf.stack([points.even, points.odd], axis=1) * released)
    left = points._replace(even=points.even * kept, odd=points.odd * kept)
    with tf.control_dependencies([opened]):
      return [apply.write(self._state.points, tf.stack(left, axis=1))]

  def _points(self) -> Point:
    """Returns all points, in columns."""
    return Point(*tf.unstack(apply.read(self._state.points), axis=1))

  def _wanted(self, members: tf.Tensor) -> tf.Tensor:
    """Returns the number of gradients that the policy wants in an update."""
    expected = tf.maximum(members, self._state.workers.num_workers)
    return tf.maximum(expected - self._spare, 1)

  def _quorum(self) -> tf.Tensor:
    """Returns the number of gradients of which an update can be made now."""
    members = self._state.workers.num_members()
    ended, last, _ = self._state.read_executions()
    left = tf.where(last >= 0, last - ended, members)
    there = tf.minimum(members, left)
    return tf.maximum(tf.minimum(self._wanted(members), there), 1)


def _without_lead(points: Point, worker: tf.Tensor) -> tuple[Point, tf.Tensor]:
  """Returns points that a worker does not lead, and whether it led any."""
  led = tf.equal(points.leader, worker + 1)
  points = points._replace(
    leader=tf.where(led, tf.zeros_like(points.leader), points.leader),
    repeated=points.repeated + _count(led),
  )
  return points, tf.reduce_any(led)


def _count(condition: tf.Tensor) -> tf.Tensor:
  return tf.cast(condition, tf.int64)
