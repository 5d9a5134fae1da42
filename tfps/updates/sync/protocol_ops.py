"""Who makes the next version of what all workers update together.

All of it is operations on the board's ps, for functions that are being traced.
A worker whose gradients have come to all ps says so. The one that completes the
quorum leads: it makes the update and lets the others go, who wait meanwhile.

A worker that has nothing to do goes away, and is not waited for. It comes back
between two updates, so that what it computes is part of the next.

A step may have several points. At the first, all workers are waited for; at
those after it, only those that have come to the first in the same step and are
not late since. One that begins in the midst of the others' step waits at the
first for the next.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps.updates.sync import gates
from tfps.updates.sync import protocol
from tfps.updates.sync import ps_state as ps_state_lib

NEVER = -1  # the version of gradients that are late whenever they come
ALL = 1 << 40  # more gradients than ever come


class StepTicket(NamedTuple):
  """What a worker knows of a point when it begins a step.

  Attributes:
    version: of the parameters.
    quorum: of how many gradients the next version is made.
  """

  version: tf.Tensor
  quorum: tf.Tensor


class Arrival(NamedTuple):
  """What becomes of a worker whose gradients have come.

  Attributes:
    leads: whether this worker is to make the next version.
    after: the turn after that otherwise.
    enough: of how many gradients it is to be made.
    counts: whether the gradients came in time. With spare workers those that
      are late count, too.
  """

  leads: tf.Tensor
  after: StepTicket
  enough: tf.Tensor
  counts: tf.Tensor


class SyncOps:
  """The turns of all points.

  Args:
    state: has their state.
    spare: of how many workers an update need not wait for.
    name: of the job; unique on the ps.
  """

  def __init__(
    self, state: ps_state_lib.SyncState, *, spare: int, name: str
  ) -> None:
    self._state = state
    self._spare = spare
    self._gates = [
      gates.of_point(point, name, state.device)
      for point in range(ps_state_lib.MAX_POINTS)
    ]
    self._rules = protocol.SyncProtocol(state, self._gates, spare=spare)

  def begin(self, worker: tf.Tensor) -> list[StepTicket]:
    """Takes a worker in that is to execute something; each point's turn.

    While others make an update of the first point, it waits: what it computes
    now would be too late.
    """

    def look() -> Any:
      return tuple(
        map(tf.identity, self._state.locked(self._rules.begin, worker))
      )

    def again(waits: tf.Tensor, versions: tf.Tensor, quorum: tf.Tensor) -> Any:
      del waits, quorum
      with tf.control_dependencies([self._gates[0].wait(versions[0])]):
        return look()

    with tf.device(self._state.device):
      _, versions, quorum = tf.while_loop(
        lambda waits, *rest: waits, again, look(), parallel_iterations=1
      )
    quorum = tf.identity(quorum)
    return [StepTicket(v, quorum) for v in tf.unstack(tf.identity(versions))]

  def for_sums(self, turn: StepTicket) -> StepTicket:
    """The turn; without spare workers, of as many gradients as come.

    Their number may have changed since it began.
    """
    if self._spare:
      return turn
    return turn._replace(quorum=tf.constant(ALL, tf.int64))

  def end(self, worker: tf.Tensor) -> tf.Operation:
    """Counts an execution. If no others begin, it is waited for no longer."""
    return self._state.locked(self._rules.end, worker).op

  def arrive(
    self, point: int, worker: tf.Tensor, turn: StepTicket, step: tf.Tensor
  ) -> Arrival:
    """Says that a worker's gradients have come, and waits for the next version.

    Args:
      point: to which they have come.
      worker: whose they are.
      turn: in which they were computed.
      step: the version of the first point at which the step began.
    """

    def look(version: tf.Tensor, arrives: int) -> Any:
      return self._state.locked(
        self._rules.look, point, worker, version, step, arrives
      )

    def again(leads: Any, waits: Any, version: Any, *rest: Any) -> Any:
      del leads, waits
      with tf.control_dependencies([self._gates[point].wait(version)]):
        *found, _ = look(version, 0)
      return *found, rest[-1]

    before = [self._give_way(point, worker, turn.version)] if point else []
    with tf.device(self._state.device), tf.control_dependencies(before):
      leads, _, version, quorum, enough, counts = tf.while_loop(
        lambda leads, waits, *rest: waits,
        again,
        look(turn.version, 1),
        parallel_iterations=1,
      )
    after = StepTicket(tf.identity(version), tf.identity(quorum))
    leads, enough, counts = map(tf.identity, (leads, enough, counts))
    return Arrival(leads, after, enough, counts)

  def counts(
    self, arrival: Arrival, turn: StepTicket, version: tf.Tensor
  ) -> tf.Tensor:
    """Whether gradients are part of an update, or late as they may be.

    Args:
      arrival: of these.
      turn: in which they were computed.
      version: that has come of it.
    """
    if self._spare:
      return arrival.counts
    # Else all has begun anew meanwhile.
    return arrival.counts & tf.equal(version, turn.version + 1)

  def _give_way(
    self, point: int, worker: tf.Tensor, version: tf.Tensor
  ) -> tf.Operation:
    """Has nobody within the same step wait for a worker that is late."""
    return self._state.locked(self._rules.leave_step, point, worker, version).op

  def release(
    self, point: int, version: tf.Tensor, number: tf.Tensor
  ) -> StepTicket:
    """Says that the next version is made, and lets those go that wait for it.

    Args:
      point: of whose update it is.
      version: that for which the gradients were computed.
      number: of how many gradients it was made.
    """
    after = self._state.locked(self._rules.release, point, version, number)
    return StepTicket(*map(tf.identity, after))

  def leave_out(self, worker: tf.Tensor, member: tf.Tensor) -> tf.Operation:
    """Has nobody wait for an update that a worker was to make.

    Args:
      worker: its number.
      member: AWAY, DONE, ABSENT, or PRESENT if the worker itself is waited for.
    """
    return self._state.locked(self._rules.leave_out, worker, member).op

  def dismiss(self, are_busy: tf.Tensor) -> tf.Operation:
    """Has nobody wait for workers that have nothing to do.

    Args:
      are_busy: by worker, 0 for those.
    """
    return self._state.locked(self._rules.dismiss, are_busy).op

  def take_in(self, worker: tf.Tensor) -> tf.Operation:
    """Has updates wait for a worker, whatever it has said before."""
    return self._state.locked(self._rules.take_in, worker).op

  def rest(self, last: tf.Tensor) -> tf.Operation:
    """Says how many executions will have ended before others begin."""
    return self._state.locked(self._rules.rest, last).op

  def leave_step(self, worker: tf.Tensor) -> tf.Operation:
    """Says that a worker does not do the step to its end that it is in."""
    return self._state.locked(self._rules.cut_short, worker).op

  def pause(self, value: tf.Tensor) -> tf.Tensor:
    """Sets whether no step may make its first update.

    Args:
      value: 1 to pause, 0 to go on.

    Returns:
      How many updates are being made nevertheless, or are to be made by workers
      that are within a step; and the value before.
    """
    return tf.identity(self._state.locked(self._rules.pause, value))

  def start(self, version: tf.Tensor, updates: tf.Tensor) -> tf.Operation:
    """Begins anew: what has come is dropped, and who waits goes on.

    Args:
      version: larger than any before, unless there was none of its time.
      updates: how many there may be.
    """
    return self._state.locked(self._rules.start, version, updates).op
