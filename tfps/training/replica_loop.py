"""Training loop of a process that executes the steps itself."""

from collections.abc import Callable
import functools
from typing import Any
from typing import Protocol
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import per_worker
from tfps.input import tracing
from tfps.server import task_monitor
from tfps.training import attempts as attempts_lib
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import progress as progress_lib
from tfps.training import queue_supply as queue_supply_lib
from tfps.training import step_log as step_log_lib
from tfps.training import step_program
from tfps.updates.sync import session as session_lib
from tfps.variables import step_replicas
from tfps.wire import transfers as transfers_lib

_Result = TypeVar('_Result')


class Batches(Protocol):
  """Input of steps: an iterator that may change between executions."""

  @property
  def spec(self) -> Any:
    """The type of `iterator`."""

  @property
  def iterator(self) -> Any:
    """Iterator over batches that does not end, or one for each worker."""


class Strategy(Protocol):
  """Interface of a strategy to the training loop.

  Attributes:
    task: the task of this process.
    is_chief: whether this process saves checkpoints.
    guard: recovers lost tasks; None without a `Recovery`.
    transfers: transfers variables and gradients.
    extended: as in TensorFlow's strategies.
  """

  task: spec_lib.Task
  is_chief: bool
  guard: Any
  transfers: transfers_lib.Transfers
  extended: Any

  @property
  def global_step(self) -> tf.Variable: ...
  @property
  def num_interruptions(self) -> int: ...
  def scope(self) -> Any: ...
  def surviving(self, function: Callable[[], _Result]) -> _Result: ...
  def batches(self, dataset_fn: per_worker.DatasetFn) -> Batches: ...
  def readers(self, dataset_fn: per_worker.DatasetFn) -> Any: ...
  def input_context(self) -> tf.distribute.InputContext: ...
  def addresses(self) -> dict[spec_lib.Task, str]: ...
  def monitor(self) -> task_monitor.TaskMonitor: ...
  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None: ...


class ReplicaLoop:
  """One call of `BetweenGraphStrategy.train`, or of `InGraphStrategy.train`.

  Args:
    strategy: executes the steps.
    progress: has the settings, and reports to hooks.
    saving: the settings of checkpoints, which only the chief saves.
  """

  def __init__(
    self,
    strategy: Strategy,
    progress: progress_lib.TrainProgress,
    saving: checkpoints_lib.Saving,
  ) -> None:
    self._strategy = strategy
    self._progress = progress
    self._spec = progress.spec
    strategy.transfers.check_execution(self._spec.steps_per_execution)
    self._sync_session = session_lib.of(strategy)
    self._counts: attempts_lib.Counts | None = None
    self._supply: queue_supply_lib.Supply | None = None
    self._checkpoints = checkpoints_lib.Checkpoints(
      saving if strategy.is_chief else checkpoints_lib.Saving(),
      strategy.global_step,
      task=strategy.task,
      queues=strategy.extended.queues,
    )

  def run(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> progress_lib.TrainResult:
    """Trains to the end.

    Args:
      step_fn: computes and applies the gradients of a batch.
      dataset_fn: makes the dataset of this worker, or of a split.
    """
    start = self._begin()
    try:
      step = self._train(start, step_fn, dataset_fn)
    finally:
      self._leave()
    self._save(step)
    return self._progress.end(step)

  def _train(
    self,
    step: int,
    step_fn: step_program.StepFn,
    dataset_fn: per_worker.DatasetFn,
  ) -> int:
    """Does the steps after a global step; returns the last one."""
    self._trace_counts()
    execute = self._executing(step, step_fn, dataset_fn)
    while self._has_work(step) or self._has_lost_steps():
      step = execute(step)
      if self._checkpoints.is_due(step, self._progress.secs):
        self._save(step)
    return step

  def _leave(self) -> None:
    """Tells other workers not to wait for this one any more."""
    sync_session = self._sync_session
    if sync_session is not None:
      self._surviving(lambda: sync_session.end(sync_session.worker()))

  def _executing(
    self,
    start: int,
    step_fn: step_program.StepFn,
    dataset_fn: per_worker.DatasetFn,
  ) -> Callable[[int], int]:
    """Returns a function that does some steps.

    It maps the global step before them, at first `start`, to that after them.
    """
    try:
      batches = self._strategy.batches(dataset_fn)
    except tracing.NeedsOrderError:
      supply = self._supply = self._supplied(step_fn, dataset_fn)
      program = supply.program

      def execute_once(step: int) -> int:
        supply.update()
        attempt = supply.attempt(self._spec.steps - step)
        function = supply.full.function
        return self._execute(supply.full, attempt, lambda: attempt(function))

    else:
      self._spec.check_end(None)
      source = step_program.Iterated(batches.spec)
      program = self._program(step_fn, source, self._spec.steps_per_execution)

      def execute_once(step: int) -> int:
        to_do = program.execution(self._size(step))
        return self._execute(to_do, to_do, self._attempt(to_do, batches))

    def execute(step: int) -> int:
      program.unrolling.unroll_if_due(
        self._spec.steps_per_execution,
        self._spec.timeout_secs,
        left=(self._spec.steps - step) / max(1, step - start),
      )
      with program.unrolling.timed():
        step = execute_once(step)
      program.unrolling.note_result()
      return step

    return execute

  def _supplied(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> queue_supply_lib.Supply:
    readers = self._strategy.readers(dataset_fn)
    self._spec.check_end(readers)
    return queue_supply_lib.Supply(
      readers,
      step_replicas.of(self._strategy),
      functools.partial(self._program, step_fn),
      self._spec.steps_per_execution,
      self._counts,
      self._sync_session,
    )

  def _has_work(self, step: int) -> bool:
    """Returns whether steps are left to do."""
    is_finished = self._supply is not None and self._supply.finished
    return step < self._spec.steps and not is_finished

  def _trace_counts(self) -> None:
    step_log = step_log_lib.of(self._strategy)
    if step_log is not None:
      with self._strategy.scope():
        self._counts = attempts_lib.Counts(
          self._strategy, step_log, self._strategy.global_step
        )

  def _has_lost_steps(self) -> bool:
    """Returns whether steps were lost with a ps and must be repeated."""
    guard = self._strategy.guard
    if guard is None or not self._strategy.is_chief:
      return False
    try:
      guard.keep()
    except tf.errors.OpError as error:  # the calls below wait for the repair
      logging.warning('A ps was lost at the end of training: %s', error)
    if self._supply is not None:
      self._surviving(self._supply.refresh)
    return self._has_work(self._global_step())

  def _begin(self) -> int:
    """Restores a checkpoint if nothing is trained; returns the global step."""
    if self._global_step() == 0:
      self._checkpoints.restore()
    self._strategy.wait_for_chief('train', self._spec.timeout_secs)
    step = self._global_step()
    self._checkpoints.begin(step, self._progress.secs)
    self._progress.begin(step)
    return step

  def _size(self, step: int) -> int:
    """Returns the size of the next execution: full if it fits, or one step."""
    full = self._spec.steps_per_execution
    return full if step + full <= self._spec.steps else 1

  def _program(
    self, step_fn: step_program.StepFn, source: step_program.Source, full: int
  ) -> step_program.StepProgram:
    return step_program.StepProgram(
      self._strategy,
      step_fn,
      source,
      global_step=self._strategy.global_step,
      full=full,
    )

  def _execute(
    self, to_do: step_program.Execution, done: Any, attempt: Callable[[], Any]
  ) -> int:
    """Does some steps; returns the global step after them.

    Args:
      to_do: the execution.
      done: has the number of steps that were done, once it has ended.
      attempt: calls the execution, and is called again after a loss.
    """
    try:
      vector = self._surviving(attempt)
    except tf.errors.OutOfRangeError as error:
      raise ValueError(
        'dataset_fn: the dataset ran out; repeat() it.'
      ) from error
    metrics = {}
    if vector is not None:  # otherwise it was interrupted
      metrics = to_do.metrics(vector)
      self._strategy.transfers.count(to_do.num_bytes(vector), done.num_steps)
    step = self._global_step()
    if self._supply and not done.num_steps:
      return step  # other workers read all remaining splits
    self._progress.advance(step, metrics)
    return step

  def _attempt(
    self, to_do: step_program.Execution, batches: Batches
  ) -> Callable[[], Any]:
    """Returns a function that calls an execution, and again after a loss."""

    def execute(*id: tf.Tensor) -> Any:
      return to_do.function(*to_do.args(batches.iterator, *id)).numpy()

    attempt: Any
    if self._sync_session is not None:
      attempt = self._sync_session.attempt(to_do.num_steps)
    elif self._counts is not None:
      attempt = attempts_lib.Countable(self._counts, to_do)
    else:
      return execute
    return lambda: attempt(execute, *attempt.args)

  def _surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again after a loss, within the timeout if there is one.

    Raises:
      errors.DeadlineError: names the silent tasks.
    """
    secs = self._spec.timeout_secs
    if secs is None:
      return self._strategy.surviving(function)
    return self._strategy.monitor().call(
      'train', lambda: self._strategy.surviving(function), secs
    )

  def _save(self, step: int) -> None:
    self._surviving(lambda: self._checkpoints.save(step, self._progress.secs))

  def _global_step(self) -> int:
    return self._surviving(lambda: int(self._strategy.global_step.numpy()))
