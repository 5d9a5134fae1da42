"""Operations of the protocol of synchronized steps, for traced functions.

They run `protocol.SyncProtocol` under the lock of the state's ps, and let
workers wait there for the next version.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

from absl import logging
import tensorflow as tf

from tfps.updates import apply
from tfps.updates import ps_lock
from tfps.updates.sync import protocol
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync import wait_queue
from tfps.updates.sync import worker_table

WORKER = tf.TensorSpec([], tf.int64)

NEVER = -1  # version of gradients that are late whenever they arrive
ALL = 1 << 40  # more gradients than ever arrive

_CALLS = {
  'start': [WORKER] * 2,
  'rest': [WORKER],
  'pause': [WORKER],
  'leave_out': [WORKER] * 2,
  'take_in': [WORKER],
  'leave_step': [WORKER],
  'dismiss': [tf.TensorSpec([worker_table.MAX_WORKERS], tf.int64)],
}


class StepTicket(NamedTuple):
  """State of a point as a worker knows it at the beginning of a step.

  Attributes:
    version: version of the parameters.
    quorum: number of gradients of which the next version is made.
  """

  version: tf.Tensor
  quorum: tf.Tensor


class Arrival(NamedTuple):
  """Outcome for a worker whose gradients have arrived.

  Attributes:
    leads: whether this worker makes the next version.
    after: the next ticket, if it does not.
    enough: number of gradients of which the next version is made.
    counts: whether the gradients came in time; with backup workers, late ones
      count, too.
  """

  leads: tf.Tensor
  after: StepTicket
  enough: tf.Tensor
  counts: tf.Tensor


class SyncOps:
  """Operations on the synchronization state of all points.

  Args:
    state: synchronization state on the ps.
    spare: number of backup workers, for which an update need not wait.
    name: name of the job; unique on the ps.
  """

  def __init__(
    self, state: ps_state_lib.SyncState, *, spare: int, name: str
  ) -> None:
    self._state = state
    self._spare = spare
    self._queues = [
      wait_queue.for_point(point, name, state.device)
      for point in range(ps_state_lib.MAX_POINTS)
    ]
    self._protocol = protocol.SyncProtocol(state, self._queues, spare=spare)
    points = range(ps_state_lib.MAX_POINTS)
    self._begin = state.function(self._begin_there)
    self._end = state.function(self._end_there)
    self._arrive = [state.function(self._arrive_there, i) for i in points]
    self._release = [state.function(self._release_there, i) for i in points]

  def begin(self, worker: tf.Tensor) -> list[StepTicket]:
    """Admits a worker that begins an execution.

    It waits while others make an update of the first point, since gradients
    that it computed now would be late.

    Args:
      worker: the worker's number, an int64 scalar.

    Returns:
      A ticket for each point.
    """
    _, versions, quorum = self._begin(worker)
    return [StepTicket(v, quorum) for v in tf.unstack(versions)]

  def for_sums(self, ticket: StepTicket) -> StepTicket:
    """Returns the ticket for adding up gradients.

    Without backup workers its quorum is unlimited, for the number of workers
    may have changed since the step began.
    """
    if self._spare:
      return ticket
    return ticket._replace(quorum=tf.constant(ALL, tf.int64))

  def end(self, worker: tf.Tensor) -> tf.Operation:
    """Counts an execution of a worker that ended."""
    (has_ended,) = self._end(worker)
    return has_ended.op

  def arrive(
    self,
    point: int,
    worker: tf.Tensor,
    ticket: StepTicket,
    step: tf.Tensor,
    is_added: tf.Tensor,
  ) -> Arrival:
    """Reports a worker's gradients and waits for the next version.

    Args:
      point: number of the point.
      worker: the worker's number, an int64 scalar.
      ticket: ticket with which the gradients were computed.
      step: version of the first point at which the step began.
      is_added: whether the gradients were added up.
    """
    leads, _, version, quorum, enough, counts = self._arrive[point](
      worker, ticket.version, step, is_added
    )
    return Arrival(leads, StepTicket(version, quorum), enough, counts)

  def counts(
    self, arrival: Arrival, ticket: StepTicket, version: tf.Tensor
  ) -> tf.Tensor:
    """Returns whether a step counts as applied.

    Args:
      arrival: outcome of its gradients.
      ticket: ticket with which they were computed.
      version: version after the update.
    """
    if self._spare:
      return arrival.counts
    # Any other version means that the session was restarted.
    return arrival.counts & tf.equal(version, ticket.version + 1)

  def release(
    self, point: int, version: tf.Tensor, number: tf.Tensor
  ) -> StepTicket:
    """Publishes the next version and releases the workers that wait for it.

    Args:
      point: number of the point.
      version: version with which the gradients were computed.
      number: number of gradients of which the new version was made.
    """
    return StepTicket(*self._release[point](version, number))

  def leave_out(self, worker: tf.Tensor, member: tf.Tensor) -> tf.Operation:
    """Sets a worker's state and gives up an update that it was to make.

    Args:
      worker: the worker's number.
      member: AWAY, DONE, ABSENT, or PRESENT if updates still wait for it.
    """
    return self._state.locked(self._protocol.leave_out, worker, member).op

  def dismiss(self, are_busy: tf.Tensor) -> tf.Operation:
    """Excludes workers that have nothing to do.

    Args:
      are_busy: 0 for such workers, int64 [MAX_WORKERS].
    """
    return self._state.locked(self._protocol.dismiss, are_busy).op

  def take_in(self, worker: tf.Tensor) -> tf.Operation:
    """Includes a worker, whatever its state was."""
    return self._state.locked(self._protocol.take_in, worker).op

  def rest(self, last: tf.Tensor) -> tf.Operation:
    """Sets the number of executions after which no more begin for now."""
    return self._state.locked(self._protocol.rest, last).op

  def leave_step(self, worker: tf.Tensor) -> tf.Operation:
    """Notes that a worker does not complete its step."""
    return self._state.locked(self._protocol.cut_short, worker).op

  def pause(self, value: tf.Tensor) -> tf.Tensor:
    """Sets whether steps may begin their updates.

    Args:
      value: 1 to pause, 0 to continue.

    Returns:
      Two int64: the number of updates that are running or will be made by
      workers within a step, and the previous value.
    """
    return tf.identity(self._state.locked(self._protocol.pause, value))

  def start(self, version: tf.Tensor, updates: tf.Tensor) -> tf.Operation:
    """Resets the state: drops pending gradients and releases workers.

    Args:
      version: next version; larger than all before, by time.
      updates: limit of the number of updates.
    """
    versions = self._state.locked(self._protocol.start, version, updates)
    for tags in self._state.tags:
      drop = functools.partial(_drop_sums, tags)
      ps_lock.run([ps_lock.Job(tags, drop, [versions])])
    return versions.op

  # The functions below are traced once and executed on the ps.

  def _begin_there(self, worker: tf.Tensor) -> Any:
    def look() -> Any:
      return self._state.locked(self._protocol.begin, worker)

    def again(waits: tf.Tensor, versions: tf.Tensor, quorum: tf.Tensor) -> Any:
      del waits, quorum
      with tf.control_dependencies([self._queues[0].wait(versions[0])]):
        return look()

    return tf.while_loop(
      lambda waits, *rest: waits, again, look(), parallel_iterations=1
    )

  def _end_there(self, worker: tf.Tensor) -> list[tf.Tensor]:
    return [self._state.locked(self._protocol.end, worker)]

  def _arrive_there(
    self,
    point: int,
    worker: tf.Tensor,
    version: tf.Tensor,
    step: tf.Tensor,
    is_added: tf.Tensor,
  ) -> Any:
    is_added = tf.cast(is_added, tf.bool)

    def look(version: tf.Tensor, arrives: int) -> Any:
      return self._state.locked(
        self._protocol.look, point, worker, version, step, is_added, arrives
      )

    def again(leads: Any, waits: Any, version: Any, *rest: Any) -> Any:
      del leads, waits
      with tf.control_dependencies([self._queues[point].wait(version)]):
        *found, _ = look(version, 0)
      return *found, rest[-1]

    before = [self._leave_if_late(point, worker, version)] if point else []
    with tf.control_dependencies(before):
      return tf.while_loop(
        lambda leads, waits, *rest: waits,
        again,
        look(version, 1),
        parallel_iterations=1,
      )

  def _release_there(self, point: int, *args: tf.Tensor) -> Any:
    return self._state.locked(self._protocol.release, point, *args)

  def _leave_if_late(
    self, point: int, worker: tf.Tensor, version: tf.Tensor
  ) -> tf.Operation:
    """Excludes a late worker from later points of its step."""
    return self._state.locked(
      self._protocol.leave_step, point, worker, version
    ).op


def _drop_sums(tags: Any, versions: tf.Tensor) -> list[Any]:
  """Drops the sums of gradients of before a start, and closes them."""
  before = apply.read(tags)
  closed = tf.stack([versions - 1, tf.fill(tf.shape(versions), ALL)], axis=1)
  are_old = before[:, :1] < versions[:, tf.newaxis]
  return [apply.write(tags, tf.where(are_old, closed, before))]


class HostCalls:
  """Calls of `SyncOps` from this process, outside of steps.

  Args:
    sync_ops: operations; they are traced as this is made.
  """

  def __init__(self, sync_ops: SyncOps) -> None:
    self._functions = {
      name: _function(getattr(sync_ops, name), spec)
      for name, spec in _CALLS.items()
    }

  def call(self, name: str, *args: int | list[int]) -> Any:
    """Calls a method of the operations.

    Args:
      name: name of the method.
      *args: numbers, or numbers of all workers.

    Returns:
      Its tensor, if any.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with tf.device(None):  # not on the worker for which this thread calls
      given = [tf.constant(arg, tf.int64) for arg in args]
      return self._functions[name](*given)

  def try_to_call(self, name: str, *args: int | list[int]) -> None:
    """Calls a method as `call` does, but only logs errors."""
    try:
      self.call(name, *args)
    except tf.errors.OpError as error:
      logging.warning(
        'Could not update the synchronization state on ps:0 (%s): %s',
        name,
        error,
      )


def _function(call: Callable[..., Any], spec: list[tf.TensorSpec]) -> Any:
  def function(*args: tf.Tensor) -> tf.Tensor | None:
    returned = call(*args)
    return returned if tf.is_tensor(returned) else None

  made = tf.function(function, autograph=False)
  return made.get_concrete_function(*spec)
