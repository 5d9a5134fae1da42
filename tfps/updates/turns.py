"""Who makes the next version of what all workers update together.

All of it is operations on the board's ps, for functions that are being traced.
A worker whose gradients have come to all ps says so. The one that completes the
quorum leads: it makes the update and lets the others go, who wait meanwhile.

A step may have several points. At the first, all workers are waited for; at
those after it, only those that have come to the first in the same step and are
not late since. One that begins in the midst of the others' step waits at the
first for the next.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps.updates import applying
from tfps.updates import board as board_lib
from tfps.updates import gates
from tfps.updates.board import Point

NEVER = -1  # the version of gradients that are late whenever they come


class Turn(NamedTuple):
  """What a worker knows of a point when it begins a step.

  Attributes:
    version: of the parameters.
    quorum: of how many gradients the next version is made.
  """

  version: tf.Tensor
  quorum: tf.Tensor


class Turns:
  """The turns of all points.

  Args:
    board: has their state.
    spare: of how many workers an update need not wait for.
    name: of the job; unique on the ps.
  """

  def __init__(self, board: board_lib.Board, *, spare: int, name: str) -> None:
    self._board = board
    self._spare = spare
    self._gates = [
      gates.of_point(point, name, board.device)
      for point in range(board_lib.MAX_POINTS)
    ]

  def begin(self, worker: tf.Tensor) -> list[Turn]:
    """Takes a worker in that is to execute something; each point's turn."""
    versions, quorum = map(tf.identity, self._board.locked(self._begin, worker))
    return [Turn(v, quorum) for v in tf.unstack(versions)]

  def end(self, worker: tf.Tensor) -> tf.Operation:
    """Counts an execution. If no others begin, it is waited for no longer."""
    return self._board.locked(self._end, worker).op

  def arrive(
    self, point: int, worker: tf.Tensor, turn: Turn, step: tf.Tensor
  ) -> tuple[tf.Tensor, Turn, tf.Tensor]:
    """Says that a worker's gradients have come, and waits for the next version.

    Args:
      point: to which they have come.
      worker: whose they are.
      turn: in which they were computed.
      step: the version of the first point at which the step began.

    Returns:
      Whether this worker is to make it, the turn after that otherwise, and of
      how many gradients it is to be made.
    """

    def look(version: tf.Tensor, arrives: int) -> Any:
      return self._board.locked(
        self._look, point, worker, version, step, arrives
      )

    def again(leads: Any, waits: Any, version: Any, *rest: Any) -> Any:
      del leads, waits, rest
      with tf.control_dependencies([self._gates[point].wait(version)]):
        return look(version, 0)

    before = [self._give_way(point, worker, turn.version)] if point else []
    with tf.device(self._board.device), tf.control_dependencies(before):
      leads, _, version, quorum, enough = tf.while_loop(
        lambda leads, waits, *rest: waits,
        again,
        look(turn.version, 1),
        parallel_iterations=1,
      )
    after = Turn(tf.identity(version), tf.identity(quorum))
    return tf.identity(leads), after, tf.identity(enough)

  def _give_way(
    self, point: int, worker: tf.Tensor, version: tf.Tensor
  ) -> tf.Operation:
    """Has nobody within the same step wait for a worker that is late."""
    return self._board.locked(self._leave_step, point, worker, version).op

  def release(self, point: int, version: tf.Tensor, number: tf.Tensor) -> Turn:
    """Says that the next version is made, and lets those go that wait for it.

    Args:
      point: of whose update it is.
      version: that for which the gradients were computed.
      number: of how many gradients it was made.
    """
    after = self._board.locked(self._release, point, version, number)
    return Turn(*map(tf.identity, after))

  def leave_out(self, worker: tf.Tensor, member: tf.Tensor) -> tf.Operation:
    """Has nobody wait for an update that a worker was to make.

    Args:
      worker: its number.
      member: DONE, ABSENT, or PRESENT if the worker itself is waited for.
    """
    return self._board.locked(self._leave_out, worker, member).op

  def take_in(self, worker: tf.Tensor) -> tf.Operation:
    """Has updates wait for a worker, whatever it has said before."""
    return self._board.locked(self._take_in, worker).op

  def rest(self, last: tf.Tensor) -> tf.Operation:
    """Says how many executions will have ended before others begin."""
    return self._board.locked(self._rest, last).op

  def leave_step(self, worker: tf.Tensor) -> tf.Operation:
    """Says that a worker does not do the step to its end that it is in."""
    return self._board.locked(self._cut_short, worker).op

  def pause(self, value: tf.Tensor) -> tf.Tensor:
    """Says whether no step is to make its first update.

    Returns:
      How many updates are being made nevertheless, or are to be made by workers
      that are within a step.
    """
    return tf.identity(self._board.locked(self._pause, value))

  def start(self, version: tf.Tensor, updates: tf.Tensor) -> tf.Operation:
    """Begins anew: what has come is dropped, and who waits goes on.

    Args:
      version: larger than any before, unless there was none of its time.
      updates: how many there may be.
    """
    return self._board.locked(self._start, version, updates).op

  # What is done by who has the lock. Each returns what it read and what it
  # wrote, the latter as operations.

  def _begin(self, worker: tf.Tensor) -> Any:
    # Where it was cut short, others may be waiting for it within a step.
    was_within = self._board.step_of(worker) > board_lib.NO_STEP
    with tf.control_dependencies([was_within]):
      noted = self._board.note(worker, board_lib.RUNNING)
      noted += self._board.note_step(worker, board_lib.NO_STEP)
    taken = self._let_go(was_within)
    with tf.control_dependencies(noted):
      versions = applying.read(self._board.points)[:, 0]
      return (versions, self._quorum()), noted + taken

  def _end(self, worker: tf.Tensor) -> Any:
    noted = self._board.note(worker, board_lib.PRESENT)
    noted += self._board.note_step(worker, board_lib.NO_STEP)
    ended, last, paused = self._board.read_executions()
    written = self._board.set_executions(ended + 1, last, paused)
    points = self._points()
    # They may be waiting for what it has not done.
    are_within = tf.reduce_any(points.even[1:] + points.odd[1:] > 0)
    are_to_look = (last >= 0) | are_within
    taken = self._let_go(are_to_look, points)
    return (are_to_look,), noted + written + taken

  def _leave_step(
    self, number: int, worker: tf.Tensor, version: tf.Tensor
  ) -> Any:
    is_late = tf.not_equal(self._board.point(number).version, version)
    none = tf.constant(board_lib.NO_STEP, tf.int64)
    step = tf.where(is_late, none, self._board.step_of(worker))
    taken = self._let_go(is_late)
    return (is_late,), self._board.note_step(worker, step) + taken

  def _look(
    self,
    number: int,
    worker: tf.Tensor,
    version: tf.Tensor,
    step: tf.Tensor,
    arrives: int,
  ) -> Any:
    noted = self._board.note(worker, board_lib.RUNNING)
    if number == 0 and arrives:
      noted += self._board.note_step(worker, step)
    with tf.control_dependencies(noted):
      quorum = enough = self._quorum()
      if number:
        within = self._board.num_members_in(step)
        enough = tf.maximum(tf.minimum(quorum, within), 1)
    is_paused = tf.not_equal(self._board.read_executions()[board_lib.PAUSED], 0)
    if number:
      is_paused &= ~self._has_more_points(self._points())
    point = self._board.point(number)
    is_next = tf.equal(point.version, version)
    is_current = is_next & (point.version < point.goal)
    arrived = point.arrived + _count(is_current) * arrives
    leads = is_current & (arrived >= enough) & tf.equal(point.leader, 0)
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
    written = self._board.set_point(number, new)
    next_version = tf.where(waits, version, point.version)
    return (leads, waits, next_version, quorum, enough), noted + written

  def _release(self, number: int, version: tf.Tensor, enough: tf.Tensor) -> Any:
    wanted = self._wanted(self._board.num_members())
    point = self._board.point(number)
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
      written = self._board.set_point(number, new)
    return (new.version, self._quorum()), written

  def _leave_out(self, worker: tf.Tensor, member: tf.Tensor) -> Any:
    written = self._board.note_unless_done(worker, member)
    with tf.control_dependencies(written):
      written += self._board.expect_all_if_done()
    written += self._board.note_step(worker, board_lib.NO_STEP)
    points = self._points()
    led = tf.equal(points.leader, worker + 1)
    points = points._replace(
      leader=tf.where(led, tf.zeros_like(points.leader), points.leader),
      repeated=points.repeated + _count(led),
    )
    return (points.version,), written + self._let_go(True, points)

  def _take_in(self, worker: tf.Tensor) -> Any:
    return (worker,), self._board.note(worker, board_lib.PRESENT)

  def _rest(self, last: tf.Tensor) -> Any:
    ended, _, paused = self._board.read_executions()
    written = self._board.set_executions(ended, last, paused)
    return (ended,), written + self._let_go(True)

  def _pause(self, value: tf.Tensor) -> Any:
    ended, last, _ = self._board.read_executions()
    written = self._board.set_executions(ended, last, value)
    points = self._points()
    number = tf.math.count_nonzero(points.leader)
    # Those that are past their step's first point, and maybe past all.
    within = self._board.num_members_in(points.version[0] - 1)
    number += within * _count(self._has_more_points(points))
    return (number,), written + self._let_go(tf.equal(value, 0), points)

  def _cut_short(self, worker: tf.Tensor) -> Any:
    written = self._board.note_step(worker, board_lib.NO_STEP)
    return (worker,), written + self._let_go(True)

  def _has_more_points(self, points: Point) -> tf.Tensor:
    """Whether steps have more points than one, as far as is known."""
    return tf.reduce_any(points.updates[1:] > 0)

  def _start(self, version: tf.Tensor, updates: tf.Tensor) -> Any:
    points = self._points()
    zeros = tf.zeros_like(points.version)
    versions = tf.maximum(points.version + 1, version)
    points = points._replace(
      version=versions, goal=versions + updates, arrived=zeros, leader=zeros
    )
    zero = tf.zeros([], tf.int64)
    written = self._board.set_executions(zero, zero - 1, zero)
    clocks = tf.fill([board_lib.MAX_WORKERS], versions[0])
    written.append(applying.write(self._board.clocks, clocks))
    written.append(applying.write(self._board.steps, self._board.no_steps()))
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
      return [applying.write(self._board.points, tf.stack(left, axis=1))]

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
    return Point(*tf.unstack(applying.read(self._board.points), axis=1))

  def _wanted(self, members: tf.Tensor) -> tf.Tensor:
    """Of how many gradients an update is to be made."""
    expected = tf.maximum(members, self._board.num_workers)
    return tf.maximum(expected - self._spare, 1)

  def _quorum(self) -> tf.Tensor:
    """Of how many it can be made now."""
    members = self._board.num_members()
    ended, last, _ = self._board.read_executions()
    left = tf.where(last >= 0, last - ended, members)
    there = tf.minimum(members, left)
    return tf.maximum(tf.minimum(self._wanted(members), there), 1)


def _count(condition: tf.Tensor) -> tf.Tensor:
  return tf.cast(condition, tf.int64)


def _nothing() -> tf.Tensor:
  return tf.constant(0)
