"""Training loop of a coordinator: keeps workers busy, saves, logs, resumes."""

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
from tfps.input import readers as readers_lib
from tfps.input import tracing
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
  """An execution that has been scheduled.

  Attributes:
    to_do: the execution.
    done: has the number of steps that were done, once it has ended.
    num_steps: how many steps were scheduled.
  """

  to_do: step_program.Execution
  done: Any
  num_steps: int


class TrainingLoop:
  """One call of `Coordinator.train`.

  Args:
    coordinator: schedules the executions.
    progress: has the settings, and reports to hooks.
    saving: the settings of checkpoints.
  """

  def __init__(
    self,
    coordinator: 'coordinator_lib.Coordinator',
    progress: progress_lib.TrainProgress,
    saving: checkpoints_lib.Saving,
  ) -> None:
    self._coordinator = coordinator
    self._progress = progress
    self._spec = progress.spec
    self._saving = saving
    self._program: step_program.StepProgram | None = None
    self._executions: dict[int, step_program.Execution] = {}
    self._iterators: Any = None
    self._supply: queue_supply_lib.Supply | None = None
    self._pending: dict[Any, _Scheduled] = {}
    self._counts: attempts_lib.Counts | None = None
    self._transfers = transfers.of(coordinator.strategy)
    self._transfers.check_execution(progress.spec.steps_per_execution)
    sync_session = session_lib.of(coordinator.strategy)
    self._sync_session = (  # only if all workers' gradients make one update
      sync_session
      if sync_session is not None and sync_session.makes_one_update
      else None
    )
    self._start = 0
    self._step = 0
    self._scheduled = 0

  def run(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> progress_lib.TrainResult:
    """Trains to the end.

    Args:
      step_fn: computes and applies the gradients of a batch.
      dataset_fn: makes the dataset of a worker, or of a split.
    """
    self._checkpoints, start = self._call('restore', self._restore)
    self._step = self._scheduled = self._start = start
    self._progress.begin(start)
    if start < self._spec.steps:
      self._prepare(step_fn, dataset_fn)
    self._checkpoints.begin(start, self._progress.secs)
    with self._cancelling(), self._sync_step():
      self._advance()
      while self._has_lost_steps():
        self._advance()
    self._save()
    return self._progress.end(self._step)

  def _advance(self) -> None:
    while self._pending or self._has_work():
      self._fill()
      if self._pending:
        self._collect()
        self._unroll_if_it_pays()
      elif self._has_work():
        self._scheduled = self._step  # late steps of an update did not count
        self._save()

  def _has_work(self) -> bool:
    """Returns whether steps are left to do."""
    is_finished = self._supply is not None and self._supply.finished
    return self._step < self._spec.steps and not is_finished

  def _has_lost_steps(self) -> bool:
    """Returns whether steps were lost with a ps and must be repeated."""
    guard = getattr(self._coordinator.strategy, 'guard', None)
    if guard is not None:  # the steps counted below must not be lost later
      self._call('recovery', lambda: self._coordinator.surviving(guard.keep))
    self._step = self._scheduled = min(self._step, self._global_step())
    if self._supply is not None:
      self._call('splits', self._supply.refresh)
    return self._has_work()

  def _fill(self) -> None:
    """Schedules until workers are busy, or a checkpoint is due."""
    spec, num_workers = self._spec, self._coordinator.num_workers
    # With one update of all workers, each of them does the same steps.
    number = num_workers if self._sync_session else 1
    while (
      self._scheduled < spec.steps
      and self._has_work()
      and len(self._pending) <= spec.in_flight_per_worker * num_workers - number
    ):
      if self._checkpoints.is_due(self._scheduled, self._progress.secs):
        self._coordinator.rest()
        return
      for _ in range(number):
        value, scheduled = self._schedule(spec.steps - self._scheduled)
        self._pending[value] = scheduled
      self._scheduled += scheduled.num_steps
    is_all = self._scheduled >= spec.steps or not self._has_work()
    # Late steps of a synchronous update do not count, and are scheduled again.
    if is_all and (self._supply is not None or not self._sync_session):
      self._coordinator.rest()

  def _schedule(self, missing: int) -> tuple[Any, '_Scheduled']:
    """Schedules an execution of at most `missing` steps."""
    if self._supply is not None:
      attempt = self._supply.attempt(missing)
      scheduled = _Scheduled(self._supply.full, attempt, attempt.num_steps)
      value = self._coordinator.schedule_through(
        attempt, self._supply.full.function, ()
      )
      return value, scheduled
    # After a loss, the missing steps are done by functions traced before.
    size = max(size for size in self._executions if size <= missing)
    to_do = self._executions[size]
    value, done = attempts_lib.schedule(
      self._coordinator, to_do, self._iterators, self._counts
    )
    return value, _Scheduled(to_do, done, size)

  def _collect(self) -> None:
    """Waits for one execution or more, and reports their progress."""
    for value in self._wait_any():
      scheduled = self._pending.pop(value)
      metrics = self._read_metrics(value, scheduled)
      num_steps = scheduled.done.num_steps
      if self._sync_session:
        self._step = self._coordinator.surviving(self._read_global_step)
        if self._supply:  # workers with batches are ahead of those without
          self._scheduled = max(self._scheduled, self._step)
      else:
        self._step += num_steps
        self._scheduled -= scheduled.num_steps - num_steps
      if self._supply and not num_steps:
        continue  # other workers read all remaining splits
      self._progress.advance(self._step, metrics)

  def _wait_any(self) -> list[Any]:
    """Waits for one execution or more; returns their values."""
    timeout_secs = self._spec.timeout_secs
    if self._program is None:
      return self._coordinator.wait_any(self._pending, timeout_secs)
    with self._program.unrolling.timed():
      found = self._coordinator.wait_any(self._pending, timeout_secs)
    self._program.unrolling.note_result()
    return found

  def _read_metrics(
    self, value: Any, scheduled: '_Scheduled'
  ) -> dict[str, float]:
    """Returns an execution's metrics; none if it was interrupted."""
    vector = self._coordinator.fetch(value, self._spec.timeout_secs)
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
    """Traces all functions before a worker can be lost.

    Tracing registers functions on all workers, with the interpreter's lock
    held; a hung worker would block this process.
    """
    strategy = self._coordinator.strategy
    readers = None
    try:
      given = per_worker.iterators(self._coordinator, dataset_fn)
    except tracing.NeedsOrderError:
      readers = readers_lib.WorkerReaders(self._coordinator, dataset_fn)
    self._spec.check_end(readers)
    step_log = step_log_lib.of(strategy)
    with self._coordinator.scheduling():
      if step_log is not None:
        self._counts = attempts_lib.Counts(
          strategy, step_log, self._coordinator.global_step
        )
      full = self._spec.steps_per_execution
      if readers is not None:
        sync_session = session_lib.of(strategy)
        self._supply = queue_supply_lib.Supply(
          readers,
          step_replicas.of(strategy),
          functools.partial(self._make_program, step_fn),
          full,
          self._counts,
          sync_session,
        )
        self._program = self._supply.program
        return
      self._iterators, spec = given
      self._program = self._make_program(
        step_fn, step_program.Iterated(spec), full
      )
      with self._program.unrolling.timed():
        for size in self._spec.sizes(
          self._step, may_be_cut=step_log is not None
        ):
          self._executions[size] = self._program.execution(size)

  def _unroll_if_it_pays(self) -> None:
    """Traces full executions with unrolled steps, once."""
    if self._program is None:
      return
    full, done = self._spec.steps_per_execution, self._step - self._start
    left = (self._spec.steps - self._step) / max(1, done)
    if not self._program.unrolling.unroll_if_due(
      full, self._spec.timeout_secs, left=left
    ):
      return
    with self._coordinator.scheduling():
      if self._supply is not None:
        self._supply.update()
      else:
        self._executions[full] = self._program.execution(full)

  def _make_program(
    self, step_fn: step_program.StepFn, source: step_program.Source, full: int
  ) -> step_program.StepProgram:
    return step_program.StepProgram(
      self._coordinator.strategy,
      step_fn,
      source,
      global_step=self._coordinator.global_step,
      full=full,
    )

  @contextlib.contextmanager
  def _sync_step(self) -> Iterator[None]:
    """Stops synchronous updates of all workers at the last step."""
    sync_session = self._sync_session
    if sync_session is None or self._step >= self._spec.steps:
      yield
      return
    global_step = self._coordinator.global_step
    steps = self._spec.steps
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
    monitor, timeout_secs = self._coordinator.monitor, self._spec.timeout_secs
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
        f'{self._spec.steps}; repeat() it.'
      ) from error
    except BaseException:
      self._coordinator.cancel()
      raise
