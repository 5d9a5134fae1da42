"""Trains through a coordinator: keeps workers busy, saves, logs, resumes."""

from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import math
from typing import Any
from typing import TYPE_CHECKING

from absl import logging
import tensorflow as tf

from tfps import attempts as attempts_lib
from tfps import checkpoints as checkpoints_lib
from tfps import cluster as cluster_lib
from tfps import execution
from tfps import hooks as hooks_lib
from tfps import marks as marks_lib
from tfps import worker_input
from tfps.wire import transfers

if TYPE_CHECKING:
  from tfps import coordinator as coordinator_lib

_COUNTS = ('steps', 'steps_per_execution', 'max_unroll', 'in_flight_per_worker')
_RATE_WINDOW = 64
_CHIEF = cluster_lib.Task('chief', 0)


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """Where training stands at its end.

  Attributes:
    step: the global step.
    steps: how many of them this call did.
    metrics: averaged over the steps of the last line logged.
    secs: how long it took.
  """

  step: int
  steps: int
  metrics: Mapping[str, float]
  secs: float


@dataclasses.dataclass(frozen=True)
class Plan:
  """How to train.

  Attributes:
    steps: the global step to reach.
    steps_per_execution: how many steps a worker does at a time.
    max_unroll: how many of them to lay out in one graph.
    in_flight_per_worker: executions to keep scheduled for each worker.
    stop_on_nan: whether a metric that is not a number is an error.
    timeout_secs: how long an execution or a checkpoint may take; None is for
      ever.
  """

  steps: int
  steps_per_execution: int = 1
  max_unroll: int = execution.MAX_UNROLL
  in_flight_per_worker: int = 2
  stop_on_nan: bool = True
  timeout_secs: float | None = None

  def __post_init__(self) -> None:
    for name in _COUNTS:
      value = getattr(self, name)
      if not isinstance(value, int) or value < 1:
        raise ValueError(f'train: {name}={value!r} must be 1 or more.')

  def sizes(self, start: int, *, may_be_cut: bool) -> set[int]:
    """The sizes of the executions that lead from a step to the last.

    Of those that may be cut short, single steps do the rest.
    """
    todo = max(0, self.steps - start)
    full = [self.steps_per_execution] * (todo >= self.steps_per_execution)
    return {*full, todo % self.steps_per_execution, int(may_be_cut)} - {0}

  def check(self, metrics: Mapping[str, float], step: int) -> None:
    """Raises FloatingPointError, or warns, of a metric that is not a number."""
    for name, value in metrics.items():
      if math.isnan(value):
        message = f'At step {step} the metric {name} is not a number.'
        if self.stop_on_nan:
          raise FloatingPointError(message)
        logging.log_every_n_seconds(logging.WARNING, message, 10)


class Rate:
  """Steps per second over the latest executions."""

  def __init__(self) -> None:
    self._seen: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)

  def add(self, secs: float, step: int) -> None:
    """Notes the step reached at a time."""
    self._seen.append((secs, step))

  def steps_per_sec(self) -> float:
    """The rate; 0 while it is not known."""
    if len(self._seen) < 2:
      return 0.0
    (first_secs, first), (last_secs, last) = self._seen[0], self._seen[-1]
    secs = last_secs - first_secs
    return (last - first) / secs if secs > 0 else 0.0


class TrainingLoop:
  """One call of `Coordinator.train`.

  Args:
    coordinator: schedules the executions.
    plan: how to train.
    saving: what to save, where and how often.
    hooks: get the progress; the first is the log.
    clock: seconds that only go forward.
  """

  def __init__(
    self,
    coordinator: 'coordinator_lib.Coordinator',
    plan: Plan,
    saving: checkpoints_lib.Saving,
    *,
    hooks: Sequence[hooks_lib.Hook],
    clock: Callable[[], float],
  ) -> None:
    self._coordinator = coordinator
    self._plan = plan
    self._hooks = hooks
    self._clock = clock
    self._started_at = clock()
    self._saving = saving
    self._rate = Rate()
    self._executions: dict[int, execution.Execution] = {}
    self._iterators: Any = None
    self._pending: dict[Any, tuple[execution.Execution, Any]] = {}
    self._counts: attempts_lib.Counts | None = None
    self._transfers = transfers.of(coordinator.strategy)
    self._step = 0
    self._scheduled = 0

  def run(
    self, step_fn: execution.StepFn, dataset_fn: worker_input.DatasetFn
  ) -> tuple[int, int, float]:
    """Trains to the last step; returns the first, the last and the seconds."""
    self._checkpoints, start = self._call('restore', self._restore)
    self._step = self._scheduled = start
    if start < self._plan.steps:
      self._prepare(step_fn, dataset_fn)
    self._checkpoints.begin(start, self._secs())
    self._tell('begin')
    with self._cancelling():
      self._advance()
      while self._is_set_back():
        self._advance()
    self._save()
    self._tell('end')
    return start, self._step, self._secs()

  def _advance(self) -> None:
    while self._step < self._plan.steps:
      self._fill()
      if self._pending:
        self._collect()
      else:
        self._save()

  def _is_set_back(self) -> bool:
    """Whether steps were lost, with a ps, and are to be done again."""
    guard = getattr(self._coordinator.strategy, 'guard', None)
    if guard is not None:  # what is counted below is not to be lost later
      self._call('recovery', lambda: self._coordinator.surviving(guard.keep))
    step = self._call(
      'global_step', lambda: int(self._coordinator.global_step.numpy())
    )
    self._step = self._scheduled = min(self._step, step)
    return self._step < self._plan.steps

  def _fill(self) -> None:
    """Schedules until workers are busy, or all is to come to rest and saved."""
    plan, num_workers = self._plan, self._coordinator.num_workers
    while (
      self._scheduled < plan.steps
      and len(self._pending) < plan.in_flight_per_worker * num_workers
      and not self._checkpoints.is_due(self._scheduled, self._secs())
    ):
      # After a loss, what is missing is done by what has been traced.
      missing = plan.steps - self._scheduled
      size = max(size for size in self._executions if size <= missing)
      to_do = self._executions[size]
      value, done = attempts_lib.schedule(
        self._coordinator, to_do, self._iterators, self._counts
      )
      self._pending[value] = to_do, done
      self._scheduled += size

  def _collect(self) -> None:
    """Takes in one execution or more."""
    timeout_secs = self._plan.timeout_secs
    for value in self._coordinator.wait_any(self._pending, timeout_secs):
      scheduled, done = self._pending.pop(value)
      metrics = self._take_in(value, scheduled)
      self._step += done.num_steps
      self._scheduled -= scheduled.num_steps - done.num_steps
      self._rate.add(self._secs(), self._step)
      self._plan.check(metrics, self._step)
      self._tell('step', metrics)

  def _take_in(self, value: Any, done: execution.Execution) -> dict[str, float]:
    """An execution's metrics; none if it was cut short."""
    vector = self._coordinator.fetch(value, self._plan.timeout_secs)
    if vector is None:
      return {}
    self._transfers.count(done.num_bytes(vector), done.num_steps)
    return done.metrics(vector)

  def _save(self) -> None:
    self._call(
      'checkpoint', lambda: self._checkpoints.save(self._step, self._secs())
    )

  def _tell(
    self, moment: str, metrics: Mapping[str, float] | None = None
  ) -> None:
    progress = hooks_lib.Progress(
      moment=moment,
      step=self._step,
      steps=self._plan.steps,
      metrics=metrics or {},
      steps_per_sec=self._rate.steps_per_sec(),
      elapsed_secs=self._secs(),
    )
    for hook in self._hooks:
      hook(progress)

  def _restore(self) -> tuple[checkpoints_lib.Checkpoints, int]:
    global_step = self._coordinator.global_step
    checkpoints = checkpoints_lib.Checkpoints(
      self._saving, global_step, task=_CHIEF
    )
    checkpoints.restore()
    return checkpoints, int(global_step.numpy())

  def _prepare(
    self, step_fn: execution.StepFn, dataset_fn: worker_input.DatasetFn
  ) -> None:
    """Traces all there is to trace, before a worker can be lost.

    Tracing holds the interpreter's lock while a frozen worker is told.
    """
    coordinator = self._coordinator
    self._iterators, spec = worker_input.iterators(coordinator, dataset_fn)
    marks = marks_lib.of(coordinator.strategy)
    with coordinator.scheduling():
      if marks is not None:
        self._counts = attempts_lib.Counts(
          coordinator.strategy, marks, coordinator.global_step
        )
      for size in self._plan.sizes(self._step, may_be_cut=marks is not None):
        self._executions[size] = execution.trace(
          coordinator.strategy,
          step_fn,
          spec,
          global_step=coordinator.global_step,
          num_steps=size,
          max_unroll=self._plan.max_unroll,
        )

  def _call(self, what: str, function: Callable[[], Any]) -> Any:
    watch, timeout_secs = self._coordinator.watch, self._plan.timeout_secs
    watch.wait_while_hung(what, timeout_secs)
    return watch.call(
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

  def _secs(self) -> float:
    return self._clock() - self._started_at
