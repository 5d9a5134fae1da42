"""What workers change on the board as they take their turns.

All of it is done by who has the board's lock, for functions that are being
traced.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.updates import apply
from tfps.updates.sync import gates as gates_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync.ps_state import Point


class SyncProtocol:
  """Those of all points.

  Each method returns what it read and what it wrote, the latter as operations.

  Args:
    state: has the state.
    gates: of each point.
    spare: of how many workers an update need not wait for.
  """

  def __init__(
    self,
    state: ps_state_lib.SyncState,
    gates: Sequence[gates_lib.WaitQueue],
    *,
    spare: int,
  ) -> None:
    self._state = state
    self._gates = gates
    self._spare = spare

  def begin(self, worker: tf.Tensor) -> Any:
    """Takes a worker in; whether it waits, the versions and the quorum."""
    # Where it was cut short, others may be waiting for it within a step.
    was_within = self._state.step_of(worker) > ps_state_lib.NO_STEP
    with tf.control_dependencies([was_within]):
      noted = self._state.note(worker, ps_state_lib.RUNNING)
      noted += self._state.note_step(worker, ps_state_lib.NO_STEP)
    points = self._points()
    waits = self._is_led_by_others(points, worker)
    mine = tf.one_hot(0, ps_state_lib.MAX_POINTS, dtype=tf.int64) * _count(
      waits
    )
    is_even = _count(tf.equal(points.version[0] % 2, 0))
    points = points._replace(
      even=points.even + mine * is_even, odd=points.odd + mine * (1 - is_even)
    )
    taken = self._let_go(was_within, points)
    with tf.control_dependencies(noted):
      return (waits, points.version, self._quorum()), noted + taken

  def _is_led_by_others(self, points: Point, worker: tf.Tensor) -> tf.Tensor:
    """Whether they make an update that no gradient may be late for."""
    if self._spare:
      return tf.constant(value=False)
    leader = points.leader[0]
    return (leader > 0) & tf.not_equal(leader, worker + 1)

  def end(self, worker: tf.Tensor) -> Any:
    """Counts an execution of a worker."""
    noted = self._state.note(worker, ps_state_lib.PRESENT)
    noted += self._state.note_step(worker, ps_state_lib.NO_STEP)
    ended, last, paused = self._state.read_executions()
    written = self._state.set_executions(ended + 1, last, paused)
    points = self._points()
    # They may be waiting for what it has not done.
    are_within = tf.reduce_any(points.even[1:] + points.odd[1:] > 0)
    are_to_look = (last >= 0) | are_within
    taken = self._let_go(are_to_look, points)
    return (are_to_look,), noted + written + taken

  def leave_step(
    self, number: int, worker: tf.Tensor, version: tf.Tensor
  ) -> Any:
    """Has a worker that is late leave its step."""
    is_late = tf.not_equal(self._state.point(number).version, version)
    none = tf.constant(ps_state_lib.NO_STEP, tf.int64)
    step = tf.where(is_late, none, self._state.step_of(worker))
    taken = self._let_go(is_late)
    return (is_late,), self._state.note_step(worker, step) + taken

  def look(
    self,
    number: int,
    worker: tf.Tensor,
    version: tf.Tensor,
    step: tf.Tensor,
    arrives: int,
  ) -> Any:
    """Whether a worker leads, or waits, and what it is to know besides."""
    point = self._state.point(number)
    is_next = tf.equal(point.version, version)
    is_current = is_next & (point.version < point.goal)
    arrived = point.arrived + _count(is_current) * arrives
    noted = self._state.note(worker, ps_state_lib.RUNNING)
    if number == 0:
      noted += self._note_arrival(worker, step, is_current, arrives)
    with tf.control_dependencies(noted):
      quorum = enough = self._quorum()
      come = arrived
      if number:
        within = self._state.num_members_in(step)
        enough = tf.maximum(tf.minimum(quorum, within), 1)
      elif not self._spare:
        # Gradients of lost workers do not stand in for those of others.
        come = self._state.num_members_in(version)
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
      late=point.late + _count(~is_next) * arrives,
    )
    written = self._state.set_point(number, new)
    next_version = tf.where(waits, version, point.version)
    if self._spare:  # late by design, unless there are no more updates
      counts = is_current | ~is_next
    else:
      counts = is_current & tf.equal(point.leader, 0)
    found = (leads, waits, next_version, quorum, enough, counts)
    return found, noted + written

  def _note_arrival(
    self,
    worker: tf.Tensor,
    step: tf.Tensor,
    is_current: tf.Tensor,
    arrives: int,
  ) -> list[tf.Operation]:
    """Notes the step of a worker that arrives, or waits though left out."""
    if not arrives:
      step = tf.where(is_current, step, self._state.step_of(worker))
    return self._state.note_step(worker, step)

  def release(self, number: int, version: tf.Tensor, enough: tf.Tensor) -> Any:
    """Has a version be made, and lets those go that wait for it."""
    wanted = self._wanted(self._state.num_members())
    point = self._state.point(number)
    is_next = tf.equal(point.version, version)  # unless all has begun anew
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
    gate = self._gates[number]
    opened = [
      gate.open(0, point.even - new.even),
      gate.open(1, point.odd - new.odd),
    ]
    with tf.control_dependencies(opened):
      written = self._state.set_point(number, new)
    return (new.version, self._quorum()), written

  def leave_out(self, worker: tf.Tensor, member: tf.Tensor) -> Any:
    """Says what a worker is that is not to be waited for."""
    away = tf.constant(ps_state_lib.AWAY, tf.int64)
    was_away = tf.equal(self._state.member(worker), away)
    is_news = ~was_away | tf.not_equal(member, away)
    with tf.control_dependencies([was_away]):
      written = self._state.note_unless_done(worker, member)
    with tf.control_dependencies(written):
      written += self._state.expect_all_if_done()
    written += self._state.note_step(worker, ps_state_lib.NO_STEP)
    points = self._points()
    led = tf.equal(points.leader, worker + 1)
    points = points._replace(
      leader=tf.where(led, tf.zeros_like(points.leader), points.leader),
      repeated=points.repeated + _count(led),
    )
    return (points.version,), written + self._let_go(is_news, points)

  def dismiss(self, are_busy: tf.Tensor) -> Any:
    """Says that who is not busy is away."""
    written = self._state.send_away(are_busy)
    with tf.control_dependencies(written):
      written += self._state.expect_all_if_done()
    return (are_busy[0],), written + self._let_go(True)

  def take_in(self, worker: tf.Tensor) -> Any:
    """Has a worker be waited for."""
    return (worker,), self._state.note(worker, ps_state_lib.PRESENT)

  def rest(self, last: tf.Tensor) -> Any:
    """Says how many executions will have ended before others begin."""
    ended, _, paused = self._state.read_executions()
    written = self._state.set_executions(ended, last, paused)
    return (ended,), written + self._let_go(True)

  def pause(self, value: tf.Tensor) -> Any:
    """Sets whether no step may begin its updates."""
    ended, last, before = self._state.read_executions()
    written = self._state.set_executions(ended, last, value)
    points = self._points()
    number = tf.math.count_nonzero(points.leader)
    # Those that are past the first point of their step, and maybe past all.
    within = self._state.num_members_in(points.version[0] - 1)
    number += within * _count(self._may_have_more_points(points))
    found = tf.stack([number, before])
    return (found,), written + self._let_go(tf.equal(value, 0), points)

  def cut_short(self, worker: tf.Tensor) -> Any:
    """Has a worker leave its step."""
    written = self._state.note_step(worker, ps_state_lib.NO_STEP)
    return (worker,), written + self._let_go(True)

  def _may_have_more_points(self, points: Point) -> tf.Tensor:
    """Whether a step may make an update at another point than the first.

    Not before its second update is it known of the first point that it is the
    only one: those who wait at another have not come back to it then.
    """
    return tf.reduce_any(points.updates[1:] > 0) | (points.updates[0] < 2)

  def start(self, version: tf.Tensor, updates: tf.Tensor) -> Any:
    """Begins anew."""
    points = self._points()
    zeros = tf.zeros_like(points.version)
    versions = tf.maximum(points.version + 1, version)
    points = points._replace(
      version=versions, goal=versions + updates, arrived=zeros, leader=zeros
    )
    zero = tf.zeros([], tf.int64)
    written = self._state.set_executions(zero, zero - 1, zero)
    clocks = tf.fill([ps_state_lib.MAX_WORKERS], versions[0])
    written.append(apply.write(self._state.clocks, clocks))
    written.append(apply.write(self._state.steps, self._state.no_steps()))
    return (versions,), written + self._let_go(True, points)

  def _let_go(self, if_any: Any, points: Point | None = None) -> list[Any]:
    """Has those look again that wait at any point.

    Args:
      if_any: whether they are to; else they go on waiting.
      points: new ones to write.
    """
    points = points or self._points()
    counts = tf.stack([points.even, points.odd], axis=1)
    if if_any is True:
      opened = self._open_all(counts)
    else:
      opened = tf.cond(if_any, lambda: self._opened(counts), _nothing).op
    kept = _count(tf.logical_not(if_any))
    left = points._replace(even=points.even * kept, odd=points.odd * kept)
    with tf.control_dependencies([opened]):
      return [apply.write(self._state.points, tf.stack(left, axis=1))]

  def _opened(self, counts: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([self._open_all(counts)]):
      return _nothing()

  def _open_all(self, counts: tf.Tensor) -> tf.Operation:
    opened = [
      gate.open(parity, counts[point, parity])
      for point, gate in enumerate(self._gates)
      for parity in range(2)
    ]
    with tf.control_dependencies(opened):
      return tf.no_op()

  def _points(self) -> Point:
    """What there is of all points, in columns."""
    return Point(*tf.unstack(apply.read(self._state.points), axis=1))

  def _wanted(self, members: tf.Tensor) -> tf.Tensor:
    """Of how many gradients an update is to be made."""
    expected = tf.maximum(members, self._state.num_workers)
    return tf.maximum(expected - self._spare, 1)

  def _quorum(self) -> tf.Tensor:
    """Of how many it can be made now."""
    members = self._state.num_members()
    ended, last, _ = self._state.read_executions()
    left = tf.where(last >= 0, last - ended, members)
    there = tf.minimum(members, left)
    return tf.maximum(tf.minimum(self._wanted(members), there), 1)


def _count(condition: tf.Tensor) -> tf.Tensor:
  return tf.cast(condition, tf.int64)


def _nothing() -> tf.Tensor:
  return tf.constant(0)
