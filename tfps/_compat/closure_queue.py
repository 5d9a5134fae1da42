"""Queue of a coordinator's closures, whose waits have deadlines."""

from typing import Any

from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.distribute.coordinator import (
  remote_value as remote_value_lib,
)

from tfps._compat import cancellation
from tfps._utils import deadlines


class StillInFlightError(Exception):
  """Cancelled executions have not ended by the deadline."""


class Queue(cluster_coordinator._CoordinatedClosureQueue):
  """Closure queue that waits for cancelled executions until a deadline.

  TensorFlow's waits for them without limit.

  Attributes:
    deadline: by `time.monotonic`; None waits without limit.
  """

  deadline: float | None = None

  @property
  def failed(self) -> bool:
    return self._error is not None

  @property
  def num_queued(self) -> int:
    return self._queue.qsize()

  @property
  def num_in_flight(self) -> int:
    number: int = self._inflight_closure_count
    return number

  def wait_for_room(self) -> bool:
    """Waits until a closure can be put; returns False at the deadline.

    TensorFlow's `put` waits without limit.
    """
    with self._queue_lock:
      return deadlines.wait_for(
        self._queue_free_slot_condition,
        lambda: not self._queue.full(),
        self.deadline,
      )

  def wait(self, timeout: float | None = None) -> bool:
    deadline = deadlines.after(timeout)
    with self._put_wait_lock, self._queue_lock:
      quiet = deadlines.wait_for(
        self._stop_waiting_condition, self._is_quiet, deadline
      )
      self._raise_if_error()
      return quiet

  def _is_quiet(self) -> bool:
    return self.failed or (
      self._queue.empty() and not self._inflight_closure_count
    )

  def put_back(self, closure: Any) -> None:
    # Its result, if there is one, was lost before it was fetched: threads that
    # wait for it must wait for the next result.
    closure.maybe_call_with_output_remote_value(_forget_result)
    super().put_back(closure)

  def cancel_queued(self) -> None:
    """Cancels the closures that no worker has begun."""
    with self._queue_lock:
      while not self._queue.empty():
        self._queue.get(block=False).mark_cancelled()
      self._queue_free_slot_condition.notify_all()
      if not self._inflight_closure_count:
        self._stop_waiting_condition.notify_all()

  def _cancel_all_closures(self) -> None:
    # Called with the lock held by `put`, `wait` and `done` once there is an
    # error. An exception here keeps that error for their next caller.
    self._cancellation_mgr.start_cancel()
    stopped = deadlines.wait_for(
      self._no_inflight_closure_condition,
      lambda: not self._inflight_closure_count,
      self.deadline,
    )
    if not stopped:
      raise StillInFlightError from self._error
    super()._cancel_all_closures()
    self.cancel_call_by_call()

  def cancel_call_by_call(self) -> None:
    """Makes each execution one call, so that it can be cancelled alone."""
    self._cancellation_mgr = cancellation.Calls()


def _forget_result(remote_value: Any) -> None:
  remote_value._status_available_event.clear()
  remote_value._status = remote_value_lib.RemoteValueStatus.NOT_READY
  remote_value._values = None
  remote_value._error = None
