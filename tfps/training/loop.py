"""Trains through a coordinator: keeps workers busy, saves, logs, resumes."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any
from typing import TYPE_CHECKING

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import per_worker
from tfps.input import readers as input_feeds
from tfps.input import tracing as input_orders
from tfps.training import attempts as attempts_lib
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import progress as progress_lib
from tfps.training import queue_supply as queue_supply_lib
from tfps.training import step_log as step_log_lib
from tfps.training import step_program
from tfps.updates.sync import session as session_lib
from tfps.variables import step_replicas
from tfps.wire import transfers

if TYPE_CHECKING:
  from tfps.training import coordinator as coordinator_lib

_CHIEF = spec_lib.Task('chief', 0)


@dataclasses.dataclass(frozen=True)
class _Scheduled:
  """What has been scheduled.

  Attributes:
    to_do: the execution.
    done: has the number of steps that were done, once they are.
    num_steps: how many were to be done.
  """

  to_do: step_program.Execution
  done: Any
  num_steps: int


class TrainingLoop:
  """One call of `Coordinator.train`.

  Args:
    coordinator: schedules the executions.
    progress: how to train, and who is told.
    saving: what to save, where and how often.
  """

  def __init__(
    self,
    coordinator: 'coordinator_lib.Coordinator',
    progress: progress_lib.TrainProgress,
    saving: checkpoints_lib.Saving,
  ) -> None:
    self._coordinator = coordinator
    self._progress = progress
    self._plan = progress.plan
    self._saving = saving
    self._executions: dict[int, step_program.Execution] = {}
    self._iterators: Any = None
    self._supply: queue_supply_lib.Supply | None = None
    self._pending: dict[Any, _Scheduled] = {}
    self._counts: attempts_lib.Counts | None = None
    self._transfers = transfers.of(coordinator.strategy)
    sync_session = session_lib.of(coordinator.strategy)
    # Where all workers make one update of a step.
    self._sync_session = (
      sync_session
      if sync_session is not None and sync_session.makes_one_update
      else None
    )
    self._step = 0
    self._scheduled = 0

  def run(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> progress_lib.TrainResult:
    """Trains to the end."""
    self._checkpoints, start = self._call('restore', self._restore)
    self._step = self._scheduled = start
    if start < self._plan.steps:
      self._prepare(step_fn, dataset_fn)
    self._checkpoints.begin(start, self._progress.secs)
    self._progress.begin(start)
    with self._cancelling(), self._sync_step():
      self._advance()
      while self._is_set_back():
        self._advance()
    self._save()
    return self._progress.end(self._step)

  def _advance(self) -> None:
    while self._pending or self._goes_on():
      self._fill()
      if self._pending:
        self._collect()
      elif self._goes_on():
        self._scheduled = self._step  # if some came too late for an update
        self._save()

  def _goes_on(self) -> bool:
    """Whether there is more to be done than has been."""
    is_finished = self._supply is not None and self._supply.finished
    return self._step < self._plan.steps and not is_finished

  def _is_set_back(self) -> bool:
    """Whether steps were lost, with a ps, and are to be done again."""
    guard = getattr(self._coordinator.strategy, 'guard', None)
    if guard is not None:  # what is counted below is not to be lost later
      self._call('recovery', lambda: self._coordinator.surviving(guard.keep))
    self._step = self._scheduled = min(self._step, self._global_step())
    if self._supply is not None:
      self._call('splits', self._supply.look_again)
    return self._goes_on()

  def _fill(self) -> None:
    """Schedules until workers are busy, or all is to come to rest and saved."""
    plan, num_workers = self._plan, self._coordinator.num_workers
    number = (
      num_workers if self._sync_session else 1
    )  # that make the same steps
    while (
      self._scheduled < plan.steps
      and self._goes_on()
      and len(self._pending) <= plan.in_flight_per_worker * num_workers - number
    ):
      if self._checkpoints.is_due(self._scheduled, self._progress.secs):
        self._coordinator.rest()
        return
      for _ in range(number):
        value, scheduled = self._schedule(plan.steps - self._scheduled)
        self._pending[value] = scheduled
      self._scheduled += scheduled.num_steps
    is_all = self._scheduled >= plan.steps or not self._goes_on()
    if is_all and (self._supply is not None or not self._sync_session):
      self._coordinator.rest()  # unless some steps turn out to be missing

  def _schedule(self, missing: int) -> tuple[Any, '_Scheduled']:
    """Schedules an execution of as many steps as are missing, or fewer."""
    if self._supply is not None:
      attempt = self._supply.attempt(missing)
      scheduled = _Scheduled(self._supply.full, attempt, attempt.num_steps)
      value = self._coordinator.schedule_through(
        attempt, self._supply.full.function, ()
      )
      return value, scheduled
    # After a loss, what is missing is done by what has been traced.
    size = max(size for size in self._executions if size <= missing)
    to_do = self._executions[size]
    value, done = attempts_lib.schedule(
      self._coordinator, to_do, self._iterators, self._counts
    )
    return value, _Scheduled(to_do, done, size)

  def _collect(self) -> None:
    """Takes in one execution or more."""
    timeout_secs = self._plan.timeout_secs
    for value in self._coordinator.wait_any(self._pending, timeout_secs):
      scheduled = self._pending.pop(value)
      metrics = self._take_in(value, scheduled)
      num_steps = scheduled.done.num_steps
      if self._sync_session:
        self._step = self._coordinator.surviving(self._read_global_step)
        if self._supply:  # who has batches goes ahead of who has none
          self._scheduled = max(self._scheduled, self._step)
      else:
        self._step += num_steps
        self._scheduled -= scheduled.num_steps - num_steps
      if self._supply and not num_steps:
        continue  # others are at all there is
      self._progress.go_on(self._step, metrics)

  def _take_in(self, value: Any, scheduled: '_Scheduled') -> dict[str, float]:
    """An execution's metrics; none if it was cut short."""
    vector = self._coordinator.fetch(value, self._plan.timeout_secs)
    if vector is None:
      return {}
    to_do = scheduled.to_do
    self._transfers.count(to_do.num_bytes(vector), scheduled.done.num_steps)
    return to_do.metrics(vector)

  def _save(self) -> None:
    self._call(
      'checkpoint',
      lambda: self._checkpoints.save(self._step, self._progress.secs),
    )

  def _restore(self) -> tuple[checkpoints_lib.Checkpoints, int]:
    global_step = self._coordinator.global_step
    extended = self._coordinator.strategy.extended
    checkpoints = checkpoints_lib.Checkpoints(
      self._saving,
      global_step,
      task=_CHIEF,
      queues=getattr(extended, 'queues', ()),
    )
    checkpoints.restore()
    return checkpoints, int(global_step.numpy())

  def _prepare(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> None:
    """Traces all there is to trace, before a worker can be lost.

    Tracing holds the interpreter's lock while a frozen worker is told.
    """
    strategy = self._coordinator.strategy
    readers = None
    try:
      given = per_worker.iterators(self._coordinator, dataset_fn)
    except input_orders.NeedsOrderError:
      readers = input_feeds.WorkerReaders(self._coordinator, dataset_fn)
    self._plan.check_end(readers)
    marks = step_log_lib.of(strategy)
    with self._coordinator.scheduling():
      if marks is not None:
        self._counts = attempts_lib.Counts(
          strategy, marks, self._coordinator.global_step
        )
      trace = functools.partial(self._trace, step_fn)
      if readers is not None:
        num_steps = self._plan.steps_per_execution
        sync_session = session_lib.of(strategy)
        self._supply = queue_supply_lib.Supply(
          readers,
          step_replicas.of(strategy),
          trace,
          num_steps,
          self._counts,
          sync_session,
        )
        return
      self._iterators, spec = given
      for size in self._plan.sizes(self._step, may_be_cut=marks is not None):
        self._executions[size] = trace(step_program.Iterated(spec), size)

  def _trace(
    self,
    step_fn: step_program.StepFn,
    source: step_program.Source,
    num_steps: int,
  ) -> step_program.Execution:
    return step_program.trace(
      self._coordinator.strategy,
      step_fn,
      source,
      global_step=self._coordinator.global_step,
      num_steps=num_steps,
      max_unroll=self._plan.max_unroll,
    )

  @contextlib.contextmanager
  def _sync_step(self) -> Iterator[None]:
    """Within it, updates end at the last step, if all workers make one."""
    sync_session = self._sync_session
    if sync_session is None or self._step >= self._plan.steps:
      yield
      return
    global_step = self._coordinator.global_step
    steps = self._plan.steps
    self._call(
      'train',
      lambda: sync_session.start_for(lambda: steps - int(global_step.numpy())),
    )
    try:
      yield
    finally:
      sync_session.end_there()

  def _global_step(self) -> int:
    step: int = self._call('global_step', self._read_global_step)
    return step

  def _read_global_step(self) -> int:
    return int(self._coordinator.global_step.numpy())

  def _call(self, what: str, function: Callable[[], Any]) -> Any:
    monitor, timeout_secs = self._coordinator.monitor, self._plan.timeout_secs
    monitor.wait_while_hung(what, timeout_secs)
    return monitor.call(
      what, lambda: self._coordinator.surviving(function), timeout_secs
    )

  @contextlib.contextmanager
  def _cancelling(self) -> Iterator[None]:
    try:
      yield
    except tf.errors.OutOfRangeError as error:
      raise ValueError(
        f'dataset_fn: a dataset ran out near step {self._step} of '
        f'{self._plan.steps}; repeat() it.'
      ) from error
    except BaseException:
      self._coordinator.cancel()
      raise
