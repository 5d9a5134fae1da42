"""Executor of a training loop that executes steps in this process."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import Protocol
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import per_worker
from tfps.server import task_monitor
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import executors
from tfps.training import step_program
from tfps.updates import sessions

_Result = TypeVar('_Result')


class Strategy(Protocol):
  """Interface of a strategy to the executor in its process.

  Attributes:
    task: the task of this process.
    is_chief: whether this process saves checkpoints.
    guard: recovers lost tasks; None without a `Recovery`.
  """

  task: spec_lib.Task
  is_chief: bool
  guard: Any

  @property
  def global_step(self) -> tf.Variable:
    """The counter of the steps that were applied."""

  def scope(self) -> Any:
    """Returns the context in which variables are placed on ps."""

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, and again after a ps that it needs was lost."""

  def batches(self, dataset_fn: per_worker.DatasetFn) -> executors.Batches:
    """Returns the batches of datasets that do not end."""

  def readers(self, dataset_fn: per_worker.DatasetFn) -> Any:
    """Returns the reader of the batches of a queue."""

  def monitor(self) -> task_monitor.TaskMonitor:
    """Returns the monitor of the tasks that this process needs."""

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Waits until the chief makes the same call.

    Args:
      name: the name of this place in the program.
      timeout_secs: how long to wait; None for no limit.

    Raises:
      errors.DeadlineError: the chief has not made the call.
    """


class _Call:
  """Execution that `LocalExecutor` makes when it is waited for."""

  def __init__(self, function: Callable[[], Any]) -> None:
    self.function = function
    self.result: Any = None


class LocalExecutor(executors.Executor):
  """Executor that executes steps in this process, one call after another.

  Other processes may execute steps, too.

  Args:
    strategy: executes the steps.
    timeout_secs: how long an execution or another call may take; None for no
      limit.
  """

  num_workers = 1
  does_all = False

  def __init__(self, strategy: Strategy, timeout_secs: float | None) -> None:
    self.strategy = strategy
    self.global_step = strategy.global_step
    self.task = strategy.task
    self.is_chief = strategy.is_chief
    self._timeout_secs = timeout_secs

  def begin(self, checkpoints: checkpoints_lib.Checkpoints) -> None:
    if not self.surviving(lambda: int(self.global_step.numpy())):
      self.surviving(checkpoints.restore)
    self.strategy.wait_for_chief('train', self._timeout_secs)

  def batches(self, dataset_fn: per_worker.DatasetFn) -> executors.Batches:
    return self.strategy.batches(dataset_fn)

  def readers(self, dataset_fn: per_worker.DatasetFn) -> Any:
    return self.strategy.readers(dataset_fn)

  @contextlib.contextmanager
  def tracing(self) -> Iterator[None]:
    with self.strategy.scope():
      yield

  def can_trace(self) -> bool:
    """Returns True: functions are traced in this process alone."""
    return True

  @contextlib.contextmanager
  def syncing(
    self, session: sessions.Session, updates_left: Callable[[], int]
  ) -> Iterator[None]:
    del updates_left  # each worker stops by itself, and the last may be alone
    try:
      yield
    finally:
      if session.waits:
        self.surviving(lambda: session.end(session.worker()))

  def submit(
    self,
    to_do: step_program.Execution,
    attempt: Any,
    batches: executors.Batches | None,
  ) -> Any:
    if batches is None:
      return _Call(lambda: attempt(to_do.function))

    def execute(*told: tf.Tensor) -> Any:
      return to_do.function(*to_do.args(batches.iterator, *told)).numpy()

    if attempt is None:
      return _Call(execute)
    return _Call(lambda: attempt(execute, *attempt.args))

  def wait_any(self, handles: Iterable[Any]) -> list[Any]:
    handles = list(handles)
    for call in handles:
      call.result = self.surviving(call.function)
    return handles

  def fetch(self, handle: Any) -> tuple[Any, spec_lib.Task]:
    return handle.result, self.task

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    return self.call('train', function)

  def call(self, what: str, function: Callable[[], _Result]) -> _Result:
    if self._timeout_secs is None:
      return self.strategy.surviving(function)
    return self.strategy.monitor().call(
      what, lambda: self.strategy.surviving(function), self._timeout_secs
    )

  def keep(self) -> bool:
    guard = self.strategy.guard
    if guard is None or not self.is_chief:
      return False
    try:
      guard.copies.keep()
    except tf.errors.OpError as error:  # the calls that follow wait for repair
      logging.warning('A ps was lost at the end of training: %s', error)
    return True

  def rest(self) -> None:
    """Does nothing: no other worker waits for what this process has to do."""

  def cancel(self) -> None:
    """Does nothing: what has not begun is never begun."""
