"""Schedules the steps of a model for Keras' `fit` and `evaluate`.

Keras calls a function with an iterator and expects the steps to be done when it
returns. This one takes batches from the iterator, schedules the steps and
returns while they are executing. Their results are collected in order later;
reading metrics waits for all of them.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any

from absl import logging
import keras
import numpy as np

from tfps.keras import batch_structures
from tfps.keras import data_adapters
from tfps.keras import data_ends
from tfps.keras import executor as executor_lib
from tfps.keras import metric_state as metric_state_lib
from tfps.keras import model_program
from tfps.keras import split_adapter
from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.training import step_loop
from tfps.updates import sessions
from tfps.variables import step_replicas
from tfps.wire import transfers

Begin = Callable[[int, list[np.ndarray]], Any]


@dataclasses.dataclass(frozen=True)
class _Scheduled:
  """An execution that was scheduled.

  Attributes:
    value: its result, for `Executor.fetch`.
    num_steps: the number of steps to do.
    carried: the values carried to it.
    on_splits: whether its result is a list of parts, each with a number of
      steps, which may be less than `num_steps` together.
  """

  value: Any
  num_steps: int
  carried: list[np.ndarray]
  on_splits: bool


class StepFunction:
  """Schedules the steps of a model; called by Keras' trainer.

  Args:
    model: a compiled model.
    step_fn: its `train_step` or `test_step`.
    executor: executes the steps.
    in_flight: returns how many executions may be running when a call returns.
    makes_updates: whether the steps update variables.

  Raises:
    ValueError: the model is compiled to run eagerly or by XLA.
  """

  def __init__(
    self,
    model: keras.Model,
    step_fn: model_program.StepFn,
    executor: executor_lib.Executor,
    *,
    in_flight: Callable[[], int],
    makes_updates: bool = False,
  ) -> None:
    model_program.check(model)
    strategy = model.distribute_strategy
    self._model = model
    self._strategy = strategy
    self._executor = executor
    self._in_flight = in_flight
    self._makes_updates = makes_updates
    self._transfers = transfers.of(strategy)
    self._sync_session = (
      sessions.of(strategy) if makes_updates else sessions.NoSync()
    )
    self._state = metric_state_lib.State(model)
    self._executions = model_program.Executions(
      model, step_fn, self._state, self._sync_session
    )
    self._attempts = split_adapter.Attempts(
      self._executions,
      executor,
      step_replicas.of(strategy),
      self._sync_session,
    )
    self._running: deque[_Scheduled] = deque()
    self._batches: data_adapters.PerWorkerBatches | None = None
    self._num_done = 0  # steps of this `fit`
    # One dict, because Keras keeps it and reads it at the end of an epoch.
    self._logs: dict[str, Any] = {}

  def __call__(self, batches: Iterator[Any]) -> dict[str, Any]:
    """Schedules up to `steps_per_execution` steps.

    Args:
      batches: an iterator of an adapter of this package, or of the user.

    Returns:
      The logs of the last step whose result was collected.

    Raises:
      StopIteration: there are no more batches.
      ValueError: batches of a `SplitQueue` are to be evaluated.
    """
    unrolling = self._executions.unrolling
    unrolling.unroll_if_due(
      self._model.steps_per_execution,
      self._executor.timeout_secs,
      self._executor.can_trace,
    )
    with unrolling.timed():
      self._schedule_steps(batches)
    # Callbacks expect logs; to wait under `Sync` would leave out other workers.
    while not self._logs and self._running and not self._sync_session.waits:
      self._collect_oldest()
    return self._logs

  def leave(self) -> None:
    """Ends a `fit` or `evaluate`: the next one has logs of its own."""
    self._logs = {}
    self._num_done = 0

  def _schedule_steps(self, batches: Iterator[Any]) -> None:
    number = self._model.steps_per_execution
    if isinstance(batches, data_adapters.PerWorkerBatches):
      self._check(number)
      self._schedule_on_iterators(batches, number)
      return
    if isinstance(batches, split_adapter.Epoch):
      self._check(number)
      if not self._makes_updates:
        raise ValueError(
          'evaluate: x takes from a SplitQueue, which shares out what is to be '
          'trained on. Give it to fit, and evaluate on a dataset.'
        )
      self._schedule_on_splits(batches.readers(self._executor), number)
      return
    is_users_own = not isinstance(batches, data_adapters.Taking)
    if not is_users_own:
      self._check(number)
    taken = [
      batch_structures.divide(batch, self._strategy)
      for batch in data_adapters.take(batches, number, self._executor.surviving)
    ]
    for group in batch_structures.group(taken, number):
      begin = functools.partial(self._begin_on_batches, group)
      self._schedule(begin, len(group))
    if is_users_own:
      self.drain()

  def _schedule_on_iterators(
    self, batches: data_adapters.PerWorkerBatches, number: int
  ) -> None:
    """Schedules `number` steps on batches that workers take themselves.

    Raises:
      StopIteration: no worker has any more.
    """
    self._batches = batches
    batches.ends.num_left += number
    self._schedule_left(number)
    if batches.ends.num_left:
      self._collect_running()
      batches.end()
      self._batches = None
      raise StopIteration

  def _schedule_left(self, number: int) -> bool:
    """Schedules steps that are left, by `number`; returns whether there were.

    They are those for which the workers' datasets have not ended.
    """
    if self._batches is None:
      return False
    batches, num_workers = self._batches, self._executor.num_workers
    begin = functools.partial(self._begin_on_iterators, batches)
    num_scheduled = 0
    while left := batches.ends.take(number, num_workers):
      self._schedule(begin, left)
      num_scheduled += left
    return bool(num_scheduled)

  def _schedule_on_splits(self, readers: Any, number: int) -> None:
    """Schedules up to `number` steps on splits, until some have been done.

    Steps that other workers do without this one count as well.

    Raises:
      StopIteration: the epoch has ended.
    """
    done, is_idle = self._num_done, True
    while is_idle:
      if readers.finished:
        self._end_epoch(readers)
      num_running = len(self._running)
      attempts: list[Any] = []
      begin = functools.partial(self._begin_on_splits, readers, attempts)
      self._schedule(begin, number, on_splits=True)
      # Other workers may be doing all that is left.
      has_collected = len(self._running) <= num_running
      is_idle = has_collected and self._num_done == done
      is_idle &= not any(attempt.sat_out for attempt in attempts)

  def _end_epoch(self, readers: Any) -> None:
    """Ends the epoch, unless the loss of a ps has rolled back its end."""
    self.drain()
    if not self._executor.surviving(lambda: split_adapter.is_over(readers)):
      return
    if self._executor.surviving(readers.split_progress.is_finished):
      self._model.stop_training = True  # further epochs would be empty
      if not self._num_done:
        readers.warn_is_finished('fit')
    raise StopIteration

  def drain(self) -> None:
    """Does all steps that were scheduled, and collects their results."""
    self._collect_running()
    while self._schedule_left(self._model.steps_per_execution):
      self._collect_running()
    if self._batches is not None and self._batches.ends.num_left:
      logging.warning(
        'The data ended early: there were no batches for %d steps.',
        self._batches.ends.num_left,
      )
      self._batches.end()
    self._batches = None

  def _collect_running(self) -> None:
    if self._running:
      self._executor.rest()
    while self._running:
      self._collect_oldest()

  def _schedule(
    self, begin: Begin, num_steps: int, *, on_splits: bool = False
  ) -> None:
    try:
      self._schedule_now(begin, num_steps, on_splits)
    except model_program.NotAdditiveError:
      self._collect_running()
      self._executions.forget()
      self._attempts.forget()
      self._schedule_now(begin, num_steps, on_splits)
    except step_loop.OutOfScopeError as error:
      if not self._executions.unrolling.give_up(error):
        self._drop_all()
        raise
      self._schedule_now(begin, num_steps, on_splits)
    if self._state.must_wait(num_steps):
      self._collect_running()
    while len(self._running) > self._in_flight():
      self._collect_oldest()

  def _schedule_now(
    self, begin: Begin, num_steps: int, on_splits: bool
  ) -> None:
    carried = self._state.carry(num_steps)
    with self._dropping_on_error():
      value = transfers.trace_until_stable(lambda: begin(num_steps, carried))
    self._running.append(
      _Scheduled(value, num_steps, carried, on_splits=on_splits)
    )

  def _begin_on_iterators(
    self,
    batches: data_adapters.PerWorkerBatches,
    num_steps: int,
    carried: list[np.ndarray],
  ) -> Any:
    """Starts an execution on the batches that workers take themselves."""
    form = self._executions.form(num_steps)
    made = batches.made(self._executor)
    function = self._executions.on_iterator(
      form, made.spec, self._executor.scheduling
    )
    return self._begin(
      function, form, made.iterator, num_steps, carried, batches.ends
    )

  def _begin_on_batches(
    self, taken: list[Any], num_steps: int, carried: list[np.ndarray]
  ) -> Any:
    """Starts an execution on batches that have been taken."""
    form, batches = self._executions.form(num_steps), taken
    if form != step_loop.ONE_STEP:
      batches = batch_structures.stack(taken)
      if batches is taken:  # it cannot be taken from a stack by a loop
        form = step_loop.ONE_STEP
    function = self._executions.on_batches(
      form, batches, self._executor.scheduling
    )
    return self._begin(function, form, batches, num_steps, carried)

  def _begin(
    self,
    function: Any,
    form: step_loop.Form,
    batches: Any,
    num_steps: int,
    carried: list[np.ndarray],
    ends: data_ends.DataEnds | None = None,
  ) -> Any:
    schedule = self._executor.schedule
    args: tuple[Any, ...] = (batches, np.int32(num_steps), carried)
    attempt = self._sync_session.attempt(num_steps, is_logged=form.is_logged)
    if attempt is not None:
      args += attempt.args
    if ends is not None:
      attempt = ends.attempt(attempt, self._sync_session)
    if attempt is not None:
      schedule = functools.partial(self._executor.schedule_through, attempt)
    return schedule(function, args=args)

  def _begin_on_splits(
    self,
    readers: Any,
    attempts: list[Any],
    num_steps: int,
    carried: list[np.ndarray],
  ) -> Any:
    """Starts an execution on up to `num_steps` batches of splits."""
    function, attempt = self._attempts.make(readers, num_steps, carried)
    attempts.append(attempt)
    return self._executor.schedule_through(attempt, function, ())

  def _collect_oldest(self) -> None:
    """Waits for the oldest execution, and collects its result."""
    oldest = self._running.popleft()
    executing = registry_lib.of_process().timed(
      'executes steps', families.LOOP, 'execute'
    )
    with self._dropping_on_error(), executing:
      fetched = self._executor.fetch(oldest.value)
    self._executions.unrolling.note_result()
    if self._batches is not None:
      self._batches.ends.note(fetched, oldest.num_steps)
    parts = fetched or []
    if fetched and not oldest.on_splits:
      parts = [(oldest.num_steps, *fetched)]
    done, task = 0, str(self._executor.task_of(oldest.value))
    for num_steps, *part in parts:
      done += int(num_steps)
      result = self._executions.result(part, int(num_steps))
      self._state.add(result.metrics)
      self._transfers.count(result.num_bytes, int(num_steps))
      self._logs.clear()
      self._logs.update(self._state.merged(result.logs))
    if done:
      self._num_done += done
      self._note_done(done, task)
      self._state.store_carried(
        oldest.num_steps, oldest.carried, result.carried, num_done=done
      )

  def _note_done(self, num_steps: int, task: str) -> None:
    if self._makes_updates:
      registry = registry_lib.of_process()
      registry.count_execution(num_steps, task)
      for name, value in self._logs.items():
        if np.ndim(value) == 0:
          registry.set(families.STEP_METRIC, float(value), name)

  @contextlib.contextmanager
  def _dropping_on_error(self) -> Iterator[None]:
    """Drops all executions after an error, so that another `fit` can begin."""
    try:
      yield
    except (model_program.NotAdditiveError, step_loop.OutOfScopeError):
      raise
    except BaseException:
      self._drop_all()
      raise

  def _drop_all(self) -> None:
    self._running.clear()
    if self._batches is not None:
      self._batches.end()
      self._batches = None
    self._executor.cancel()

  def _check(self, num_steps: int) -> None:
    if self._makes_updates:
      self._transfers.check_execution(num_steps)
