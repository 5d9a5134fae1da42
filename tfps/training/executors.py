"""Executors of a training loop: their interface, and that of a coordinator."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import Protocol
from typing import TYPE_CHECKING
from typing import TypeVar

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import per_worker
from tfps.input import readers as readers_lib
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import step_program
from tfps.updates import sessions

if TYPE_CHECKING:
  from tfps.training import coordinator as coordinator_lib

_Result = TypeVar('_Result')


class Batches(Protocol):
  """Input of steps: an iterator that may change between executions."""

  @property
  def spec(self) -> Any:
    """The type of `iterator`."""

  @property
  def iterator(self) -> Any:
    """Iterator over batches that does not end, or one for each worker."""


class Executor(Protocol):
  """Executes steps for a `TrainingLoop`.

  Attributes:
    strategy: runs the steps.
    global_step: counts the steps that were applied.
    task: the task of this process.
    is_chief: whether this process saves checkpoints.
    does_all: whether nobody else executes steps.
  """

  strategy: Any
  global_step: tf.Variable
  task: spec_lib.Task
  is_chief: bool
  does_all: bool

  @property
  def num_workers(self) -> int:
    """How many executions run at the same time."""

  def begin(self, checkpoints: checkpoints_lib.Checkpoints) -> None:
    """Restores the latest checkpoint, unless training goes on without it."""

  def batches(self, dataset_fn: per_worker.DatasetFn) -> Batches:
    """Returns the batches of datasets that do not end.

    Raises:
      tracing.NeedsOrderError: the batches are those of a queue.
    """

  def readers(self, dataset_fn: per_worker.DatasetFn) -> readers_lib.Readers:
    """Returns the readers of the batches of a queue."""

  def tracing(self) -> contextlib.AbstractContextManager[None]:
    """Context in which to trace functions, before a task can be lost."""

  def can_trace(self) -> bool:
    """Returns whether `tracing` would not wait for a task that is frozen."""

  def syncing(
    self, session: sessions.Session, updates_left: Callable[[], int]
  ) -> contextlib.AbstractContextManager[None]:
    """Context of steps whose workers wait for each other.

    Args:
      session: synchronizes them.
      updates_left: returns how many updates are to be made.
    """

  def submit(
    self, to_do: step_program.Execution, attempt: Any, batches: Batches | None
  ) -> Any:
    """Submits an execution; returns a handle for `wait_any` and `fetch`.

    Args:
      to_do: the execution.
      attempt: calls its function, and again after a loss; see
        `attempts.Attempt`. None without anything to count.
      batches: its batches; None if the attempt has them.
    """

  def wait_any(self, handles: Iterable[Any]) -> list[Any]:
    """Waits until some executions have ended, and returns their handles.

    Raises:
      errors.DeadlineError: names the tasks that it waits for.
    """

  def fetch(self, handle: Any) -> tuple[Any, spec_lib.Task]:
    """Returns the result of an execution that has ended, and who did it.

    Returns:
      The vector of metrics and bytes, None if it was interrupted, and the task
      that has done the execution.
    """

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, and again after a ps that it needs was lost."""

  def call(self, what: str, function: Callable[[], _Result]) -> _Result:
    """Calls a function as `surviving` does, within the timeout.

    Args:
      what: names the call in errors.
      function: the function.

    Raises:
      errors.DeadlineError: names the tasks that do not answer.
    """

  def keep(self) -> bool:
    """Saves what a loss of ps would undo; returns whether steps may be missing.

    Returns:
      Whether steps may have been lost, which this process has to repeat.
    """

  def rest(self) -> None:
    """Announces that nothing is submitted until all executions have ended."""

  def cancel(self) -> None:
    """Cancels executions that have not begun."""


class ScheduledExecutor(Executor):
  """Executor that schedules steps on the workers of a coordinator.

  Args:
    coordinator: schedules the executions.
    timeout_secs: how long an execution or another call may take; None for no
      limit.
  """

  task = spec_lib.CHIEF
  is_chief = True
  does_all = True

  def __init__(
    self,
    coordinator: 'coordinator_lib.Coordinator',
    timeout_secs: float | None,
  ) -> None:
    self.strategy = coordinator.strategy
    self.global_step = coordinator.global_step
    self._coordinator = coordinator
    self._timeout_secs = timeout_secs

  @property
  def num_workers(self) -> int:
    return self._coordinator.num_workers

  def begin(self, checkpoints: checkpoints_lib.Checkpoints) -> None:
    self.call('restore', checkpoints.restore)

  def batches(self, dataset_fn: per_worker.DatasetFn) -> Batches:
    return per_worker.batches(self._coordinator, dataset_fn)

  def readers(self, dataset_fn: per_worker.DatasetFn) -> readers_lib.Readers:
    return readers_lib.WorkerReaders(self._coordinator, dataset_fn)

  def tracing(self) -> contextlib.AbstractContextManager[None]:
    return self._coordinator.scheduling()

  def can_trace(self) -> bool:
    return self._coordinator.can_trace()

  @contextlib.contextmanager
  def syncing(
    self, session: sessions.Session, updates_left: Callable[[], int]
  ) -> Iterator[None]:
    if not session.makes_one_update or self.call('train', updates_left) < 1:
      yield
      return
    session.limit(updates_left)
    try:
      self.call('train', session.start)
      yield
    finally:
      session.limit(None)

  def submit(
    self, to_do: step_program.Execution, attempt: Any, batches: Batches | None
  ) -> Any:
    if batches is None:
      return self._coordinator.schedule_through(attempt, to_do.function, ())
    given = batches.iterator
    if attempt is None:
      return self._coordinator.schedule(to_do.function, args=to_do.args(given))
    return self._coordinator.schedule_through(
      attempt, to_do.function, to_do.args(given, *attempt.args)
    )

  def wait_any(self, handles: Iterable[Any]) -> list[Any]:
    return self._coordinator.wait_any(handles, self._timeout_secs)

  def fetch(self, handle: Any) -> tuple[Any, spec_lib.Task]:
    vector = self._coordinator.fetch(handle, self._timeout_secs)
    return vector, self._coordinator.task_of(handle)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    return self._coordinator.surviving(function)

  def call(self, what: str, function: Callable[[], _Result]) -> _Result:
    monitor = self._coordinator.monitor
    monitor.wait_while_hung(what, self._timeout_secs)
    return monitor.call(
      what, lambda: self.surviving(function), self._timeout_secs
    )

  def keep(self) -> bool:
    guard = getattr(self.strategy, 'guard', None)
    if guard is not None:
      self.call('recovery', guard.copies.keep)
    return True

  def rest(self) -> None:
    self._coordinator.rest()

  def cancel(self) -> None:
    self._coordinator.cancel()
