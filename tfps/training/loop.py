"""Training loop: has steps executed, saves, logs, resumes and repeats."""

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfps.input import per_worker
from tfps.input import readers as readers_lib
from tfps.input import sources
from tfps.input import tracing
from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import executors as executors_lib
from tfps.training import progress as progress_lib
from tfps.training import queue_supply as queue_supply_lib
from tfps.training import step_program
from tfps.updates import attempts as attempts_lib
from tfps.updates import sessions
from tfps.variables import step_replicas
from tfps.wire import transfers


@dataclasses.dataclass(frozen=True)
class _Submitted:
  """An execution that was submitted.

  Attributes:
    to_do: the execution.
    done: has the number of steps that were done, once it has ended.
    num_steps: how many steps were submitted.
  """

  to_do: step_program.Execution
  done: Any
  num_steps: int


class TrainingLoop:
  """One call of `train`.

  Args:
    executor: executes the steps.
    progress: has the settings, and reports to hooks.
    saving: the settings of checkpoints, which only the chief saves.
  """

  def __init__(
    self,
    executor: executors_lib.Executor,
    progress: progress_lib.TrainProgress,
    saving: checkpoints_lib.Saving,
  ) -> None:
    self._executor = executor
    self._strategy = strategy = executor.strategy
    self._progress = progress
    self._spec = progress.spec
    self._checkpoints = checkpoints_lib.Checkpoints(
      saving if executor.is_chief else checkpoints_lib.Saving(),
      executor.global_step,
      task=executor.task,
      queues=getattr(strategy.extended, 'queues', ()),
    )
    self._transfers = transfers.of(strategy)
    self._transfers.check_execution(progress.spec.steps_per_execution)
    self._sync_session = sessions.of(strategy)
    # Whether the gradients of all workers make one update.
    self._makes_one_update = self._sync_session.makes_one_update
    self._metrics = registry_lib.of_process()
    self._program: step_program.StepProgram
    self._batches: Any = None
    self._supply: queue_supply_lib.Supply | None = None
    self._counts: attempts_lib.Counts | None = None
    self._pending: dict[Any, _Submitted] = {}
    self._start = 0
    self._step = 0
    self._submitted = 0

  def run(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> progress_lib.TrainResult:
    """Trains to the end.

    Args:
      step_fn: computes and applies the gradients of a batch.
      dataset_fn: makes the dataset of a worker, or of a split.
    """
    self._checkpoints.mark_begin()
    self._executor.begin(self._checkpoints)
    self._step = self._start = self._global_step()
    self._checkpoints.begin(self._step, self._progress.secs)
    self._progress.begin(self._step)
    with self._cancelling(), self._syncing():
      if self._step < self._spec.steps:
        with self._metrics.timed('prepares steps', families.LOOP, 'prepare'):
          self._prepare(step_fn, dataset_fn)
      self._advance()
      while self._has_lost_steps():
        self._advance()
    if self._supply is not None and self._step == self._start:
      self._supply.warn_is_finished()
    self._save()
    self._checkpoints.mark_end(self._step)
    return self._progress.end(self._step)

  def _advance(self) -> None:
    while self._pending or self._has_work():
      if not self._pending:
        self._submitted = self._step  # late steps of an update did not count
        if self._checkpoints.is_due(self._step, self._progress.secs):
          self._save()
      self._fill()
      if self._pending:
        self._collect()
        self._unroll_if_it_pays()

  def _has_work(self) -> bool:
    """Returns whether steps are left to do."""
    is_finished = self._supply is not None and self._supply.finished
    return self._step < self._spec.steps and not is_finished

  def _has_lost_steps(self) -> bool:
    """Returns whether steps were lost with a ps and must be repeated."""
    if not self._executor.keep():  # the steps counted below
      return False
    self._step = min(self._step, self._global_step())
    if self._supply is not None:
      self._executor.call('splits', self._supply.refresh)
    return self._has_work()

  def _fill(self) -> None:
    """Submits until workers are busy, or a checkpoint is due."""
    spec, num_workers = self._spec, self._executor.num_workers
    # With one update of all workers, each of them does the same steps.
    number = num_workers if self._makes_one_update else 1
    while (
      self._submitted < spec.steps
      and self._has_work()
      and len(self._pending) <= spec.in_flight_per_worker * num_workers - number
    ):
      if self._checkpoints.is_due(self._submitted, self._progress.secs):
        self._executor.rest()
        return
      for _ in range(number):
        handle, submitted = self._submit(spec.steps - self._submitted)
        self._pending[handle] = submitted
      self._submitted += submitted.num_steps
    is_all = self._submitted >= spec.steps or not self._has_work()
    # Late steps of a synchronous update do not count, and are done again.
    if is_all and (self._supply is not None or not self._makes_one_update):
      self._executor.rest()

  def _submit(self, missing: int) -> tuple[Any, _Submitted]:
    """Submits an execution of at most `missing` steps."""
    if self._supply is not None:
      to_do, attempt = self._supply.full, self._supply.attempt(missing)
      handle = self._executor.submit(to_do, attempt, None)
      return handle, _Submitted(to_do, attempt, attempt.num_steps)
    to_do = self._program.execution(self._size(missing))
    attempt = self._attempt(to_do)
    handle = self._executor.submit(to_do, attempt, self._batches)
    return handle, _Submitted(to_do, attempt or to_do, to_do.num_steps)

  def _size(self, missing: int) -> int:
    """Returns the number of steps of the next execution."""
    return max((n for n in self._sizes() if n <= missing), default=1)

  def _sizes(self) -> set[int]:
    """Returns the numbers of steps of all executions that are expected."""
    return self._spec.sizes(self._start, may_be_cut=self._counts is not None)

  def _attempt(self, to_do: step_program.Execution) -> Any:
    if self._counts is not None:
      return attempts_lib.Countable(self._counts, to_do)
    return self._sync_session.attempt(
      to_do.num_steps, is_logged=to_do.is_logged
    )

  def _collect(self) -> None:
    """Waits for one execution or more, and reports their progress."""
    executing = self._metrics.timed('executes steps', families.LOOP, 'execute')
    with self._program.unrolling.timed(), executing:
      handles = self._executor.wait_any(self._pending)
    self._program.unrolling.note_result()
    for handle in handles:
      submitted = self._pending.pop(handle)
      vector, doer = self._executor.fetch(handle)  # None if it was interrupted
      task = str(doer)
      metrics = {}
      if vector is not None:
        metrics = self._note_result(task, submitted, vector)
      num_steps = submitted.done.num_steps
      if num_steps:
        self._metrics.count_execution(num_steps, task)
      if self._makes_one_update or not self._executor.does_all:
        self._step = self._step_after(submitted, vector)
        # Workers with batches are ahead of those without.
        self._submitted = max(self._submitted, self._step)
      else:
        self._step += num_steps
        self._submitted -= submitted.num_steps - num_steps
      if self._supply and not num_steps:
        continue  # other workers read all remaining splits
      with self._metrics.timed('calls hooks', families.LOOP, 'report'):
        self._progress.advance(self._step, metrics, num_steps)

  def _step_after(self, submitted: _Submitted, vector: Any) -> int:
    """Returns the global step after an execution."""
    # Of a coordinator's workers, another one may have reached a later step, and
    # what an attempt at batches of a queue has kept may be from before a loss.
    if vector is None or self._supply or self._executor.does_all:
      return self._executor.surviving(self._read_global_step)
    return submitted.to_do.step_after(vector)

  def _note_result(
    self, task: str, submitted: _Submitted, vector: Any
  ) -> dict[str, float]:
    """Notes what an execution has transferred; returns its metrics."""
    to_do = submitted.to_do
    num_steps = submitted.done.num_steps
    self._transfers.count(to_do.num_bytes(vector), num_steps)
    num_examples = to_do.num_examples(vector, num_steps)
    if num_examples:
      self._metrics.add(families.EXAMPLES, num_examples, task=task)
    return to_do.metrics(vector)

  def _prepare(
    self, step_fn: step_program.StepFn, dataset_fn: per_worker.DatasetFn
  ) -> None:
    """Traces all functions before a worker can be lost.

    Tracing registers functions on all workers, with the interpreter's lock
    held; a hung worker would block this process.
    """
    readers: readers_lib.Readers | None = None
    try:
      self._batches = self._executor.batches(dataset_fn)
    except tracing.NeedsOrderError:
      readers = self._executor.readers(dataset_fn)
    self._spec.check_end(readers)
    step_log = self._sync_session.step_log
    make_program = functools.partial(self._make_program, step_fn)
    full = self._spec.steps_per_execution
    with self._executor.tracing():
      if step_log is not None:
        self._counts = attempts_lib.Counts(step_log, self._executor.global_step)
      if readers is not None:
        self._supply = queue_supply_lib.Supply(
          readers,
          step_replicas.of(self._strategy),
          make_program,
          full,
          self._counts,
          self._sync_session,
        )
        self._program = self._supply.program
        return
      source = sources.Iterated(self._batches.spec)
      self._program = make_program(source, full)
      with self._program.unrolling.timed():
        for size in self._sizes():
          self._program.execution(size)

  def _unroll_if_it_pays(self) -> None:
    """Traces full executions with unrolled steps, once."""
    full, done = self._spec.steps_per_execution, self._step - self._start
    left = (self._spec.steps - self._step) / max(1, done)
    if not self._program.unrolling.unroll_if_due(
      full, self._spec.timeout_secs, self._executor.can_trace, left=left
    ):
      return
    with self._executor.tracing():
      if self._supply is not None:
        self._supply.update()
      else:
        self._program.execution(full)

  def _make_program(
    self, step_fn: step_program.StepFn, source: sources.Source, full: int
  ) -> step_program.StepProgram:
    return step_program.StepProgram(
      self._strategy,
      step_fn,
      source,
      global_step=self._executor.global_step,
      full=full,
    )

  def _syncing(self) -> contextlib.AbstractContextManager[None]:
    """Context of synchronous updates, which stop at the last step."""
    return self._executor.syncing(
      self._sync_session, lambda: self._spec.steps - self._read_global_step()
    )

  def _save(self) -> None:
    with self._metrics.timed('saves a checkpoint', families.LOOP, 'save'):
      self._executor.call(
        'checkpoint',
        lambda: self._checkpoints.save(self._step, self._progress.secs),
      )

  def _global_step(self) -> int:
    return self._executor.call('global_step', self._read_global_step)

  def _read_global_step(self) -> int:
    return int(self._executor.global_step.numpy())

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
      self._executor.cancel()
      raise
