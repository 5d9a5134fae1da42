"""Monitored calls, which end at their deadline and name the silent tasks.

A frozen task blocks TensorFlow's calls to it, and a call that registers a
function with it even holds the interpreter's lock. So tasks are probed first,
and calls that may block run in a thread that can be left behind.
"""

from collections.abc import Callable
from collections.abc import Mapping
import time
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import coordinator as compat
from tfps._utils import deadlines
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.monitor import activities
from tfps.monitor import registry as registry_lib
from tfps.server import dumps
from tfps.server import health
from tfps.server import task_registry

_Result = TypeVar('_Result')

# Errors that TensorFlow may raise when a task is lost.
_LOSSES = (
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.FailedPreconditionError,
  tf.errors.InternalError,
  tf.errors.NotFoundError,
  tf.errors.UnavailableError,
  tf.errors.UnknownError,
)


class TaskMonitor:
  """Monitors the tasks that this process waits for.

  Args:
    addresses: of the tasks' servers.
    in_flight: returns the tasks that execute something for this process, and
      since when, by `time.monotonic`.
  """

  def __init__(
    self,
    addresses: Mapping[spec_lib.Task, str],
    in_flight: Callable[[], Mapping[spec_lib.Task, float]],
  ) -> None:
    self._addresses = dict(addresses)
    self._in_flight = in_flight
    self._registry: task_registry.TaskRegistry[spec_lib.Task]
    self._registry = task_registry.TaskRegistry()

  def incarnations(self) -> dict[tuple[str, int], int | None]:
    """Returns incarnations by job and index; None for tasks that are silent."""
    found = health.incarnations(self._addresses)
    return {(task.job, task.index): number for task, number in found.items()}

  def move(self, task: spec_lib.Task, address: str) -> None:
    """Changes the address at which a task is probed."""
    self._addresses = {**self._addresses, task: address}

  def is_any_hung(self) -> bool:
    """Probes all tasks; returns whether one is frozen."""
    return bool(self._silent(health.State.HUNG))

  def wait_while_hung(self, what: str, timeout_secs: float | None) -> None:
    """Waits until no task is frozen; dead tasks do not matter.

    It must be called before TensorFlow calls that may block, such as the
    tracing of a function.

    Args:
      what: the caller, for the error message.
      timeout_secs: how long to wait; None waits without limit.

    Raises:
      errors.DeadlineError: names the tasks that do not answer.
    """
    deadline = deadlines.after(timeout_secs)
    while hung := self._silent(health.State.HUNG):
      logging.warning('%s waits: %s.', what, _format(hung))
      if deadlines.is_over(deadline):
        raise errors.DeadlineError(f'{what}: {_format(hung)}.')

  def call(
    self,
    what: str,
    function: Callable[[], _Result],
    timeout_secs: float | None,
  ) -> _Result:
    """Calls a function with a deadline.

    Args:
      what: the call, for the error message.
      function: called in a thread of its own.
      timeout_secs: how long to wait; None waits without limit.

    Returns:
      The function's result.

    Raises:
      errors.DeadlineError: names the silent tasks. The thread is left behind.
    """
    future = threads.begin(f'tfps-{what}', function)
    deadline = deadlines.after(timeout_secs)
    with registry_lib.of_process().doing(f'waits in {what}'):
      is_done = deadlines.wait_until(
        lambda s: threads.is_done(future, s), deadline
      )
    if not is_done:
      raise self.error(what, timeout_secs)
    return future.result()

  def follow(
    self, what: str, function: Callable[[], _Result], timeout_secs: float
  ) -> _Result:
    """Calls a function that needs all tasks, as long as they are alive.

    Args:
      what: the call, for the error message.
      function: called in a thread of its own; may take any time.
      timeout_secs: how long a task may be silent.

    Returns:
      The function's result.

    Raises:
      errors.UnreachableError: names the tasks that have ended, or have been
        started again.
      errors.DeadlineError: names the tasks that are frozen. The thread is left
        behind.
    """
    if not self._registry.known:
      self._gone()
    future = threads.begin(f'tfps-{what}', function)
    missed: dict[spec_lib.Task, float] = {}
    while not threads.is_done(future, timeouts.current().probe_every_secs):
      now = time.monotonic()
      gone = {status.task: status for status in self._gone()}
      missed = {task: missed.get(task, now) for task in gone}
      if missed and now - min(missed.values()) >= timeout_secs:
        raise _gone_error(what, list(gone.values()), timeout_secs)
    try:
      return future.result()
    except tf.errors.OpError as error:
      lost = self._gone_after(error)
      if not lost:
        raise
      raise _gone_error(what, lost, timeout_secs) from error

  def _gone_after(self, error: tf.errors.OpError) -> list[health.Status]:
    """Returns lost tasks; connections fail before probes of the server do."""
    secs = timeouts.current().loss_visible_secs
    deadline = deadlines.after(secs if isinstance(error, _LOSSES) else 0.0)
    while not (gone := self._gone()) and not deadlines.is_over(deadline):
      time.sleep(timeouts.current().poll_secs)
    return gone

  def _gone(self) -> list[health.Status]:
    """Returns the tasks that are silent or have restarted."""
    statuses = health.probe_all(self._addresses)
    found = {
      s.task: s.incarnation if s.state is health.State.ALIVE else None
      for s in statuses
    }
    gone = self._registry.look(found) | self._registry.silent()
    return [status for status in statuses if status.task in gone]

  def error(
    self, what: str, timeout_secs: float | None
  ) -> errors.DeadlineError:
    """Returns the error of a timeout, which names silent or busy tasks.

    It also writes a dump of all tasks to stderr.

    Args:
      what: the call that timed out.
      timeout_secs: its timeout.
    """
    found = health.probe_all(self._addresses)
    silent = [s for s in found if s.state is not health.State.ALIVE]
    answering = {s.task: s.address for s in found if s not in silent}
    dumps.stalls().write(what, answering)
    reason = _format(silent) if silent else self._format_in_flight()
    return errors.DeadlineError(
      f'{what}: not done after {timeout_secs or 0:g} seconds: {reason}.'
    )

  def _silent(self, *states: health.State) -> list[health.Status]:
    return [
      status
      for status in health.probe_all(self._addresses)
      if status.state is not health.State.ALIVE
      and (not states or status.state in states)
    ]

  def _format_in_flight(self) -> str:
    now = time.monotonic()
    return 'every task answers, but ' + (
      ', '.join(
        f'{task} has been executing for {now - since:.0f} seconds'
        for task, since in self._in_flight().items()
      )
      or 'no worker executes anything'
    )


def of_workers(strategy: Any, cluster: Any) -> TaskMonitor:
  """Returns the monitor of a strategy's tasks.

  Args:
    strategy: connected to its cluster.
    cluster: the coordinator's internal cluster, which knows what workers
      execute.
  """
  addresses = {
    spec_lib.Task(job, index): address
    for job, tasks in compat.jobs(strategy).items()
    for index, address in tasks.items()
  }

  def in_flight() -> dict[spec_lib.Task, float]:
    return {
      spec_lib.Task('worker', index): since
      for index, since in compat.busy_since(cluster).items()
    }

  registry_lib.of_process().offer_activities(
    'workers',
    lambda: [
      activities.Activity('executes a function', str(task), since)
      for task, since in in_flight().items()
    ],
  )
  return TaskMonitor(addresses, in_flight)


def _format(statuses: list[health.Status]) -> str:
  return ', '.join(str(status) for status in statuses)


def _gone_error(
  what: str, gone: list[health.Status], timeout_secs: float
) -> errors.Error:
  told = ', '.join(
    f'{status.task} at {status.address} has been started again'
    if status.state is health.State.ALIVE
    else str(status)
    for status in gone
  )
  if all(status.state is health.State.HUNG for status in gone):
    return errors.DeadlineError(
      f'{what}: for {timeout_secs:g} seconds, {told}.'
    )
  return errors.UnreachableError(f'{what}: {told}.')
