"""Trains in a process that calls the steps itself."""

from collections.abc import Callable
import functools
from typing import Any
from typing import Protocol

from absl import logging
import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import per_worker
from tfps.input import tracing as input_orders
from tfps.training import attempts as attempts_lib
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import progress as progress_lib
from tfps.training import queue_supply as queue_supply_lib
from tfps.training import step_log as step_log_lib
from tfps.training import step_program
from tfps.updates.sync import session as session_lib
from tfps.variables import step_replicas
from tfps.wire import transfers as transfers_lib


class Batches(Protocol):
  """What steps have their batches from."""

  @property
  def spec(self) -> Any:
    """The type of `iterator`."""

  @property
  def iterator(self) -> Any:
    """An iterator over batches that does not end, or one for each worker."""


class Strategy(Protocol):
  """What is asked of a strategy whose variables are trained.

  Attributes:
    task: of this process.
    is_chief: whether this process saves.
    guard: repairs what is lost, if anything does.
    transfers: of its wire.
    extended: as TensorFlow's strategies have it.
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
  def surviving(self, function: Callable[[], Any]) -> Any: ...
  def batches(self, dataset_fn: per_worker.DatasetFn) -> Batches: ...
  def readers(self, dataset_fn: per_worker.DatasetFn) -> Any: ...
  def input_context(self) -> tf.distribute.InputContext: ...
  def addresses(self) -> dict[spec_lib.Task, str]: ...
  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None: ...


class ReplicaLoop:
  """One call of `BetweenGraphStrategy.train`, or of `InGraphStrategy.train`.

  Args:
    strategy: whose variables are trained.
    progress: how to train, and who is told.
    saving: what to save, where and how often, if this is the chief.
  """

  def __init__(
    self,
    strategy: Strategy,
    progress: progress_lib.TrainProgress,
    saving: checkpoints_lib.Saving,
  ) -> None:
    self._strategy = strategy
    self._surviving = strategy.surviving
    self._progress = progress
    self._plan = progress.plan
    self._sync_session = session_lib.of(strategy)
    self._executions: dict[int, step_program.Execution] = {}
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
    """Trains to the end."""
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
    """Does what is left to do from a step on; returns the last."""
    self._count_what_is_cut_short()
    execute = self._executing(step_fn, dataset_fn)
    while self._goes_on(step) or self._is_set_back():
      step = execute(step)
      if self._checkpoints.is_due(step, self._progress.secs):
        self._save(step)
    return step

  def _leave(self) -> None:
    """Has other workers wait no longer for this one."""
    sync_session = self._sync_session
    if sync_session is not None:
      self._surviving(lambda: sync_session.end(sync_session.worker()))

  def _executing(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> Callable[[int], int]:
    """A function that does some steps; of the global step, before and after."""
    try:
      batches = self._strategy.batches(dataset_fn)
    except input_orders.NeedsOrderError:
      self._supply = self._supplied(step_fn, dataset_fn)
      return self._execute_of_queue
    self._plan.check_end(None)
    source = step_program.Iterated(batches.spec)

    def execute(step: int) -> int:
      size = self._size(step)
      if size not in self._executions:
        self._executions[size] = self._trace(step_fn, source, size)
      to_do = self._executions[size]
      return self._execute(to_do, to_do, self._attempt(to_do, batches))

    return execute

  def _supplied(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> queue_supply_lib.Supply:
    readers = self._strategy.readers(dataset_fn)
    self._plan.check_end(readers)
    num_steps = self._plan.steps_per_execution
    trace = functools.partial(self._trace, step_fn)
    replicas = step_replicas.of(self._strategy)
    return queue_supply_lib.Supply(
      readers, replicas, trace, num_steps, self._counts, self._sync_session
    )

  def _execute_of_queue(self, step: int) -> int:
    assert self._supply is not None
    attempt = self._supply.attempt(self._plan.steps - step)
    to_do = self._supply.full
    return self._execute(to_do, attempt, lambda: attempt(to_do.function))

  def _goes_on(self, step: int) -> bool:
    """Whether there is more to be done than has been."""
    is_finished = self._supply is not None and self._supply.finished
    return step < self._plan.steps and not is_finished

  def _count_what_is_cut_short(self) -> None:
    marks = step_log_lib.of(self._strategy)
    if marks is not None:
      with self._strategy.scope():
        self._counts = attempts_lib.Counts(
          self._strategy, marks, self._strategy.global_step
        )

  def _is_set_back(self) -> bool:
    """Whether steps were lost, with a ps, before the chief could keep them."""
    guard = self._strategy.guard
    if guard is None or not self._strategy.is_chief:
      return False
    try:
      guard.keep()
    except tf.errors.OpError as error:  # the next line mends it
      logging.warning('A ps is lost at the end: %s', error)
    if self._supply is not None:
      self._surviving(self._supply.look_again)
    return self._goes_on(self._global_step())

  def _begin(self) -> int:
    """Restores a checkpoint unless somebody has trained; the global step."""
    if self._global_step() == 0:
      self._checkpoints.restore()
    self._strategy.wait_for_chief('train', self._plan.timeout_secs)
    step = self._global_step()
    self._checkpoints.begin(step, self._progress.secs)
    self._progress.begin(step)
    return step

  def _size(self, step: int) -> int:
    """Full executions as long as they fit, then single steps."""
    full = self._plan.steps_per_execution
    return full if step + full <= self._plan.steps else 1

  def _trace(
    self, step_fn: step_program.StepFn, source: step_program.Source, size: int
  ) -> step_program.Execution:
    with self._strategy.scope():
      return step_program.trace(
        self._strategy,
        step_fn,
        source,
        global_step=self._strategy.global_step,
        num_steps=size,
        max_unroll=self._plan.max_unroll,
      )

  def _execute(
    self, to_do: step_program.Execution, done: Any, attempt: Callable[[], Any]
  ) -> int:
    """Does some steps; the global step after them.

    Args:
      to_do: what is executed.
      done: has the number of steps that were done, once they are.
      attempt: does it, and may be called again after a loss.
    """
    try:
      vector = self._surviving(attempt)
    except tf.errors.OutOfRangeError as error:
      raise ValueError(
        'dataset_fn: the dataset ran out; repeat() it.'
      ) from error
    metrics = {}
    if vector is not None:  # else it was cut short
      metrics = to_do.metrics(vector)
      self._strategy.transfers.count(to_do.num_bytes(vector), done.num_steps)
    step = self._global_step()
    if self._supply and not done.num_steps:
      return step  # others are at all there is
    self._progress.go_on(step, metrics)
    return step

  def _attempt(
    self, to_do: step_program.Execution, batches: Batches
  ) -> Callable[[], Any]:
    """What does some steps, and may be called again after a loss."""

    def execute(*id: tf.Tensor) -> Any:
      return to_do.function(batches.iterator, *id).numpy()

    attempt: Any
    if self._sync_session is not None:
      attempt = self._sync_session.attempt(to_do.num_steps)
    elif self._counts is not None:
      attempt = attempts_lib.Countable(self._counts, to_do)
    else:
      return execute
    return lambda: attempt(execute, *attempt.args)

  def _save(self, step: int) -> None:
    self._surviving(lambda: self._checkpoints.save(step, self._progress.secs))

  def _global_step(self) -> int:
    return self._surviving(lambda: int(self._strategy.global_step.numpy()))
