"""Keeps workers within a number of steps of the slowest.

Each worker has a clock in the synchronization state, which counts its steps.
The version of the first point is the clock of the slowest included worker.
Invariant: a worker begins a step only if its clock is at most `max_lead` above
that version; else it waits for the version to rise.
"""

from typing import Any

import tensorflow as tf

from tfps.updates import apply
from tfps.updates import rows as rows_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync import wait_queue
from tfps.updates.sync import worker_table


class StalenessBound:
  """Bound of the lead of workers, for functions that are being traced.

  Args:
    state: synchronization state on the ps.
    max_lead: number of steps that a worker may be ahead.
    name: name of the job; unique on the ps.
  """

  def __init__(
    self, state: ps_state_lib.SyncState, *, max_lead: int, name: str
  ) -> None:
    self._state = state
    self._max_lead = max_lead
    self._queue = wait_queue.for_point(0, name, state.device)
    self._begin = state.function(self._begin_there)
    self._advance = state.function(self._advance_there)

  def begin(self, worker: tf.Tensor) -> tf.Tensor:
    """Admits a worker, not behind the slowest.

    Args:
      worker: the worker's number, an int64 scalar.

    Returns:
      Its clock, an int64 scalar.
    """
    (clock,) = self._begin(worker)
    return clock

  def advance(self, worker: tf.Tensor) -> tf.Tensor:
    """Counts a step and waits until the worker may begin the next.

    Args:
      worker: the worker's number, an int64 scalar.

    Returns:
      The clock of the slowest worker, an int64 scalar.
    """
    _, slowest = self._advance(worker)
    return slowest

  def _begin_there(self, worker: tf.Tensor) -> list[tf.Tensor]:
    return [self._state.locked(self._take_in, worker)]

  def _advance_there(self, worker: tf.Tensor) -> Any:
    def look(arrives: int) -> Any:
      return self._state.locked(self._look, worker, arrives)

    def again(waits: tf.Tensor, slowest: tf.Tensor) -> Any:
      del waits
      with tf.control_dependencies([self._queue.wait(slowest)]):
        return look(0)

    return tf.while_loop(
      lambda waits, slowest: waits, again, look(1), parallel_iterations=1
    )

  def _take_in(self, worker: tf.Tensor) -> Any:
    written = self._state.workers.set_member(worker, worker_table.RUNNING)
    clock = tf.maximum(self._clock(worker), self._state.point(0).version)
    written.append(rows_lib.write(self._state.workers.clocks, worker, clock))
    return (clock,), written

  def _look(self, worker: tf.Tensor, arrives: int) -> Any:
    written = self._state.workers.set_member(worker, worker_table.RUNNING)
    clock = self._clock(worker) + arrives
    written.append(rows_lib.write(self._state.workers.clocks, worker, clock))
    with tf.control_dependencies(written):
      found = self._slowest()
    point = self._state.point(0)
    has_risen = found > point.version
    slowest = tf.maximum(found, point.version)
    waits = clock - slowest > self._max_lead
    waiting = tf.stack([point.even, point.odd])
    counts = tf.where(has_risen, waiting, tf.zeros_like(waiting))
    is_even = tf.equal(slowest % 2, 0)
    even, odd = tf.unstack(waiting - counts)
    new = point._replace(
      version=slowest,
      even=even + tf.cast(waits & is_even, tf.int64),
      odd=odd + tf.cast(waits & ~is_even, tf.int64),
    )
    opened = wait_queue.release([self._queue], counts)
    with tf.control_dependencies([opened]):
      return (waits, slowest), written + self._state.set_point(0, new)

  def _clock(self, worker: tf.Tensor) -> tf.Tensor:
    return rows_lib.read(self._state.workers.clocks, worker)

  def _slowest(self) -> tf.Tensor:
    """Returns the clock of the slowest included worker."""
    members = apply.read(self._state.workers.members)
    clocks = apply.read(self._state.workers.clocks)
    ended, last, _ = self._state.read_executions()
    running = tf.equal(members, worker_table.RUNNING)
    # Whether all remaining executions have begun. The number left may be too
    # low: a process that repeats an execution may not know that it ended.
    left = last - ended
    are_all = (last >= 0) & (left <= tf.math.count_nonzero(running))
    counted = tf.where(are_all, running, members > worker_table.ABSENT)
    return tf.reduce_min(tf.where(counted, clocks, clocks.dtype.max))
