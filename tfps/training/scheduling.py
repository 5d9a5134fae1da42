"""Scheduling of functions on workers, with a deadline for each wait."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import types
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps._compat import captured_datasets
from tfps._compat import closure_queue
from tfps._compat import coordinator as compat
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.recovery import coordinator_failures
from tfps.recovery import coordinator_recovery as coordinator_recovery_lib
from tfps.server import task_monitor
from tfps.training import idle_notice
from tfps.training import remote_values as remote_values_lib

_Result = TypeVar('_Result')
_Coordinator = TypeVar('_Coordinator', bound='SchedulingCoordinator')


class SchedulingCoordinator(tf.distribute.coordinator.ClusterCoordinator):
  """`ClusterCoordinator` with deadlines; the base of `Coordinator`.

  Args:
    strategy: a `ParameterServerStrategy` of tfps or TensorFlow.
    timeout_secs: how many seconds each wait may take by default; None for no
      limit.

  Raises:
    ValueError: the strategy has no workers to schedule functions on.
  """

  def __new__(
    cls: type[_Coordinator],
    strategy: Any,
    *,
    timeout_secs: float | None = None,
  ) -> _Coordinator:
    if not getattr(strategy, 'takes_coordinator', True):
      name = type(strategy).__name__
      raise ValueError(
        f'Coordinator: a {name} has no workers to schedule functions on. Call '
        f'{name}.train, or fit.'
      )
    coordinator: _Coordinator = compat.adopt(cls, strategy)
    return coordinator

  def __init__(
    self, strategy: Any, *, timeout_secs: float | None = None
  ) -> None:
    if not hasattr(self, 'monitor'):
      super().__init__(strategy)
      self.monitor = task_monitor.of_workers(strategy, self._cluster)
      compat.take_over(
        self._cluster,
        lambda server_def, cluster: coordinator_failures.FailureHandler(
          server_def, cluster, self.monitor.incarnations
        ),
      )
      self._guard = self._start_guard()
      self.timeout_secs: float | None = None
      self._closed = False
      self._remote_values = remote_values_lib.RemoteValues(
        self._cluster, self.monitor
      )
      self._idle_notice = idle_notice.IdleNotice(strategy, self._queue)
      registry_lib.of_process().offer('coordinator', self._queue, _depths)
    if timeout_secs is not None:
      self.timeout_secs = timeout_secs

  def __enter__(self: _Coordinator) -> _Coordinator:
    return self

  def __exit__(
    self,
    error_type: type[BaseException] | None,
    error: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    if error_type is None:
      self.close()
    else:
      self._stop()

  def __del__(self) -> None:
    # TensorFlow's destructor may block forever, in whichever thread this runs.
    if hasattr(self, 'monitor') and not self._closed:
      compat.signal_stop(self._cluster)

  @property
  def num_workers(self) -> int:
    """Number of workers of the strategy's cluster."""
    return len(self._cluster.workers)

  def create_per_worker_dataset(self, dataset_fn: Any) -> Any:
    """Makes a dataset on each worker, as TensorFlow's method does.

    Args:
      dataset_fn: makes a worker's dataset, and may use datasets that were made
        outside of it; or a dataset.

    Raises:
      ValueError: it uses a dataset that cannot be sent to workers.
    """
    with captured_datasets.sent():
      return super().create_per_worker_dataset(dataset_fn)

  def schedule(
    self,
    fn: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
  ) -> Any:
    """Queues a function for any worker, as TensorFlow's `schedule`.

    Args:
      fn: a `tf.function` or Python function.
      args: its positional arguments; of per-worker values, the worker's own
        is passed.
      kwargs: its keyword arguments, likewise.

    Returns:
      A `RemoteValue` of the result; see `fetch`.

    Raises:
      errors.DeadlineError: a task was hung when the function had to be traced,
        the queue stayed full, or executions cancelled after an error did not
        end. The timeout is the constructor's.
      Exception: the error of an earlier function, which cancels those queued.
      RuntimeError: the coordinator or its strategy is closed, or this process
        has made another strategy since.
    """
    with self._about_to_schedule(fn):
      return super().schedule(fn, args=args, kwargs=kwargs)

  def schedule_through(
    self, attempt: Callable[..., Any], fn: Any, args: Sequence[Any]
  ) -> Any:
    """Schedules a function that a wrapper calls; see `schedule`.

    Args:
      attempt: the wrapper: called with the function and its arguments, and
        called again if a loss interrupts the function. If it has a method
        `note`, that is called first.
      fn: a `tf.function`.
      args: its arguments.

    Returns:
      A `RemoteValue` of the wrapper's result.

    Raises:
      errors.DeadlineError: as `schedule`.
    """
    with self._about_to_schedule(fn), self.strategy.scope():
      note = getattr(attempt, 'note', None)
      if note is not None:  # other workers may wait for its execution
        note()
      compat.being_scheduled(self.strategy, value=True)
      return compat.schedule_through(self._cluster, attempt, fn, args)

  def join(self, timeout_secs: float | None = None) -> None:
    """Waits until all scheduled functions have ended, as TensorFlow's `join`.

    Args:
      timeout_secs: how many seconds to wait; by default the constructor's.

    Raises:
      errors.DeadlineError: names the tasks that it waits for.
      Exception: the error of a function, which cancels those queued.
      RuntimeError: the coordinator is closed.
    """
    with self._until('join', timeout_secs) as deadline:
      if not self._queue.wait(deadlines.seconds_until(deadline)):
        raise self.monitor.error('join', self._timeout(timeout_secs))

  def done(self) -> bool:
    """Returns whether nothing is queued or in flight, as TensorFlow's `done`.

    Raises:
      errors.DeadlineError: executions cancelled after an error did not end.
      Exception: the error of a function, which cancels those queued.
      RuntimeError: the coordinator is closed.
    """
    with self._until('done', None):
      return bool(super().done())

  def fetch(self, val: Any, timeout_secs: float | None = None) -> Any:
    """Waits for remote values and returns their results.

    Args:
      val: a `RemoteValue`, or a nested structure that contains some.
      timeout_secs: how many seconds to wait; by default the constructor's.

    Returns:
      The structure, with NumPy values in place of remote values.

    Raises:
      errors.DeadlineError: names the tasks that it waits for.
      Exception: the error of a function, which cancels those queued.
      RuntimeError: the coordinator is closed.
    """
    with self._until('fetch', timeout_secs) as deadline:
      timeout_secs = self._timeout(timeout_secs)
      with self._idle_notice.awaited():
        return self._remote_values.fetch(val, deadline, timeout_secs)

  def task_of(self, val: Any) -> spec_lib.Task:
    """Returns the worker that has executed a function.

    Args:
      val: the function's `RemoteValue`, which is available.
    """
    index = compat.worker_of(val)
    return spec_lib.CHIEF if index is None else spec_lib.Task('worker', index)

  def wait_any(
    self, remote_values: Iterable[Any], timeout_secs: float | None = None
  ) -> list[Any]:
    """Waits until one or more remote values have a result or an error.

    Args:
      remote_values: results of `schedule`, at least one.
      timeout_secs: how many seconds to wait, and how many one execution may
        take; by default the constructor's.

    Returns:
      The remote values that are available, in the order given.

    Raises:
      errors.DeadlineError: names the tasks that it waits for.
    """
    timeout_secs = self._timeout(timeout_secs)
    with self._idle_notice.awaited():
      return self._remote_values.wait_any(remote_values, timeout_secs)

  @contextlib.contextmanager
  def scheduling(self) -> Iterator[None]:
    """Context in which to trace a function that workers are to execute.

    Raises:
      errors.DeadlineError: a task was hung, and tracing would block.
    """
    self.monitor.wait_while_hung('schedule', self.timeout_secs)
    with self.strategy.scope():
      compat.being_scheduled(self.strategy, value=True)
      try:
        yield
      finally:
        compat.being_scheduled(self.strategy, value=False)

  def can_trace(self) -> bool:
    """Returns whether `scheduling` would not wait for a task that is frozen."""
    return not self.monitor.is_any_hung()

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, and again after a ps that it needs was lost.

    Without a `Recovery`, the function is called once. It is for operations that
    this process executes on a ps; scheduled functions, and variables that are
    read or assigned, need no such call.

    Args:
      function: takes no arguments; safe to repeat.

    Returns:
      Its result.

    Raises:
      errors.CheckpointError: not all variables had been saved.
      errors.DeadlineError: names the ps that has not come back.
    """
    return self._guard.surviving(function) if self._guard else function()

  def rest(self) -> None:
    """Announces that nothing is scheduled until all functions have ended.

    With synchronous updates, busy workers then no longer wait for idle ones.
    Call it before waiting for all that is scheduled.
    """
    self._idle_notice.begin(self.timeout_secs, self.surviving)

  def cancel(self) -> None:
    """Cancels queued functions; those that workers already execute continue."""
    self._queue.cancel_queued()
    self._idle_notice.begin_at_once()

  def close(self) -> None:
    """Stops the coordinator's threads and closes the strategy; idempotent.

    A strategy that is registered with the cluster's servers tells them that
    training is done, so that they may exit.
    """
    self._stop()
    end = getattr(self.strategy, 'close', None)
    if end is not None:
      end()

  def _start_guard(self) -> coordinator_recovery_lib.CoordinatorRecovery | None:
    """Starts the recovery of lost tasks, if the strategy has one."""
    guard: coordinator_recovery_lib.CoordinatorRecovery | None = getattr(
      self.strategy, 'guard', None
    )
    if guard is not None:
      guard.start(
        self._cluster.failure_handler,
        self.monitor,
        functools.partial(compat.add_worker, self._cluster),
      )
    return guard

  @property
  def _queue(self) -> closure_queue.Queue:
    queue: closure_queue.Queue = self._cluster.closure_queue
    return queue

  def _timeout(self, timeout_secs: float | None) -> float | None:
    return self.timeout_secs if timeout_secs is None else timeout_secs

  @contextlib.contextmanager
  def _until(
    self, what: str, timeout_secs: float | None
  ) -> Iterator[float | None]:
    """Sets the deadline of a call, also for waits within the queue."""
    if self._closed:
      raise RuntimeError(f'{what}: this coordinator is closed.')
    getattr(self.strategy, 'check_usable', lambda: None)()
    timeout_secs = self._timeout(timeout_secs)
    self._queue.deadline = deadlines.after(timeout_secs)
    try:
      with registry_lib.of_process().doing(f'waits in {what}'):
        yield self._queue.deadline
    except closure_queue.StillInFlightError as error:
      raise self.monitor.error(what, timeout_secs) from error.__cause__

  @contextlib.contextmanager
  def _about_to_schedule(self, fn: Any) -> Iterator[None]:
    with self._until('schedule', None):
      self._idle_notice.end(self.done, self.timeout_secs, self.surviving)
      if _is_untraced(fn):
        self.monitor.wait_while_hung('schedule', self.timeout_secs)
      if not self._queue.wait_for_room():
        raise self.monitor.error('schedule', self.timeout_secs)
      try:
        yield
      finally:
        compat.being_scheduled(self.strategy, value=False)

  def _stop(self) -> None:
    if self._closed:
      return
    self._closed = True
    compat.forget(self.strategy)
    if self._guard is not None:
      self._guard.stop()
    left = compat.stop(
      self._cluster, deadlines.after(timeouts.current().thread_stop_secs)
    )
    if left:
      logging.warning('Threads still wait for lost or hung tasks: %s.', left)


def _depths(queue: closure_queue.Queue) -> Iterator[families.Sample]:
  """Yields how many executions are queued and in flight."""
  yield families.Sample(families.QUEUED, queue.num_queued)
  yield families.Sample(families.IN_FLIGHT, queue.num_in_flight)


def _is_untraced(fn: Any) -> bool:
  count = getattr(fn, 'experimental_get_tracing_count', None)
  return count is not None and count() == 0
