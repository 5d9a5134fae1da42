"""Waits for results of functions that a coordinator scheduled."""

from collections.abc import Iterable
import math
import time
from typing import Any

import tensorflow as tf

from tfps._compat import closure_queue
from tfps._compat import coordinator as compat
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.server import task_monitor as task_monitor_lib


class RemoteValues:
  """Waits for remote values of one coordinator, with deadlines.

  Args:
    cluster: the coordinator's internal cluster object.
    monitor: finds the tasks that do not respond, for errors.
  """

  def __init__(
    self, cluster: Any, monitor: task_monitor_lib.TaskMonitor
  ) -> None:
    self._cluster = cluster
    self._monitor = monitor

  def fetch(
    self, val: Any, deadline: float | None, timeout_secs: float | None
  ) -> Any:
    """Returns results of remote values; see `Coordinator.fetch`.

    Args:
      val: a remote value, or a structure that contains some.
      deadline: when to stop waiting, by the monotonic clock.
      timeout_secs: the same in seconds from the call on, for the error.

    Raises:
      errors.DeadlineError: names the tasks that it waits for.
    """
    return tf.nest.map_structure(
      lambda value: self._fetch(value, deadline, timeout_secs), val
    )

  def wait_any(
    self, remote_values: Iterable[Any], timeout_secs: float | None
  ) -> list[Any]:
    """Waits for some remote value; see `Coordinator.wait_any`.

    Args:
      remote_values: the remote values, at least one.
      timeout_secs: how many seconds to wait, and how many one execution may
        take.

    Raises:
      errors.DeadlineError: names the tasks that it waits for.
    """
    deadline = deadlines.after(timeout_secs)
    waiting = list(remote_values)
    while True:
      if self._is_overdue(timeout_secs):
        raise self._monitor.error('wait_any', timeout_secs)
      glance = deadlines.earliest(
        deadline, deadlines.after(timeouts.current().probe_every_secs)
      )
      found = compat.wait_until_any(self._cluster, waiting, glance)
      if found:
        return found
      if deadlines.is_over(deadline):
        raise self._monitor.error('wait_any', timeout_secs)

  def _fetch(
    self, value: Any, deadline: float | None, timeout_secs: float | None
  ) -> Any:
    if not isinstance(value, tf.distribute.coordinator.RemoteValue):
      return value
    if not compat.wait_until_finished(self._cluster, value, deadline):
      raise self._monitor.error('fetch', timeout_secs)
    if compat.is_local(value):
      return self._result(value)
    return self._monitor.call(
      'fetch', value.fetch, deadlines.seconds_until(deadline)
    )

  def _result(self, value: Any) -> Any:
    try:
      return value.fetch()
    except Exception as error:
      if self._cluster.closure_queue.failed:
        self._drain(error)
      raise

  def _drain(self, error: Exception) -> None:
    """Waits until an error has cancelled all functions; raises the first."""
    try:
      self._cluster.closure_queue.done()
    except closure_queue.StillInFlightError:
      raise
    except Exception as first:
      if first is not error:
        raise error from first

  def _is_overdue(self, timeout_secs: float | None) -> bool:
    if timeout_secs is None:
      return False
    oldest = min(compat.busy_since(self._cluster).values(), default=math.inf)
    return time.monotonic() - oldest > timeout_secs
