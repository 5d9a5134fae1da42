"""Has steps of a model done, for Keras' `fit` and `evaluate`.

These call a function with an iterator and expect the steps done when it
returns. Ours takes the batches from the iterator, schedules the steps and
returns while they are being done. What they hand back is taken in, in order,
as time goes on; whoever reads metrics waits for all of it.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any
from typing import Protocol

import keras
import numpy as np

from tfps.keras import data_adapters
from tfps.keras import metric_state as metric_state_lib
from tfps.keras import model_program
from tfps.keras import split_adapter
from tfps.training import attempts as attempts_lib
from tfps.training import step_log as step_log_lib
from tfps.training import step_program as tf_execution
from tfps.updates.sync import session as session_lib
from tfps.variables import step_replicas
from tfps.wire import transfers

Begin = Callable[[int, list[np.ndarray]], Any]


class Executor(Protocol):
  """Who executes functions: a `Coordinator`, or this very process."""

  def schedule(self, fn: Any, args: Any = None) -> Any:
    """Begins to execute a function; gives what `fetch` takes."""

  def schedule_through(self, attempt: Any, fn: Any, args: Any) -> Any:
    """Likewise, of what is called through something else; see `Attempt`."""

  def fetch(self, val: Any) -> Any:
    """What the function has returned, with arrays for tensors."""

  def surviving(self, function: Callable[[], Any]) -> Any:
    """The function's result, whatever ps is lost meanwhile."""

  def scheduling(self) -> contextlib.AbstractContextManager[None]:
    """In which a function is traced that is to be executed."""

  def rest(self) -> None:
    """Says that nothing more is scheduled until all is fetched."""

  def cancel(self) -> None:
    """Drops what has not been fetched."""


@dataclasses.dataclass(frozen=True)
class _Scheduled:
  """An execution that is under way.

  Attributes:
    value: what it will return.
    num_steps: how many it is for.
    handed_on: to it.
    on_splits: whether its result is a list of parts, each with its number of
      steps; they may be fewer.
  """

  value: Any
  num_steps: int
  handed_on: list[np.ndarray]
  on_splits: bool


class StepFunction:
  """Schedules the steps of a model; called by Keras' trainer.

  Args:
    model: compiled.
    step_fn: its `train_step` or `test_step`.
    executor: executes steps.
    in_flight: how many executions may be under way when a call returns.
    makes_updates: whether steps make updates, of which several may make one.
  """

  def __init__(
    self,
    model: keras.Model,
    step_fn: model_program.StepFn,
    executor: Executor,
    *,
    in_flight: Callable[[], int],
    makes_updates: bool = False,
  ) -> None:
    check(model)
    strategy = model.distribute_strategy
    self._model = model
    self._strategy = strategy
    self._executor = executor
    self._in_flight = in_flight
    self._makes_updates = makes_updates
    self._transfers = transfers.of(strategy)
    self._marks = step_log_lib.of(strategy) if makes_updates else None
    self._sync_session = session_lib.of(strategy) if makes_updates else None
    self._state = metric_state_lib.State(model)
    self._executions = model_program.Executions(
      strategy, step_fn, self._state, self._sync_session
    )
    self._attempts = split_adapter.Attempts(
      self._executions,
      executor,
      step_replicas.of(strategy),
      self._marks,
      self._sync_session,
    )
    self._under_way: deque[_Scheduled] = deque()
    self._num_done = 0
    # Keras keeps what it is given and looks at it at the end of an epoch.
    self._logs: dict[str, Any] = {}

  def __call__(self, batches: Iterator[Any]) -> dict[str, Any]:
    """Schedules up to `steps_per_execution` steps.

    Raises:
      StopIteration: there are no more batches.
    """
    number = self._model.steps_per_execution
    if isinstance(batches, data_adapters.PerWorkerBatches):
      self._check(number)
      iterators = batches.iterators(self._executor)
      for size in self._sizes(number):
        self._schedule(
          functools.partial(
            self._begin, self._executions.on_iterator, iterators
          ),
          size,
        )
      return self._logs
    if isinstance(batches, split_adapter.Epoch):
      self._check(number)
      if not self._makes_updates:
        raise ValueError(
          'evaluate: x takes from a SplitQueue, which shares out what is to be '
          'trained on. Give it to fit, and evaluate on a dataset.'
        )
      self._go_on(batches.readers(self._executor), number)
      return self._logs
    is_alone = not isinstance(
      batches, data_adapters.Taking
    )  # the user's own batch
    if not is_alone:
      self._check(number)
    taken = [
      data_adapters.divide(batch, self._strategy)
      for batch in data_adapters.take(batches, number, self._executor.surviving)
    ]
    full = next(self._sizes(number))
    for group in data_adapters.group(taken, full, singly=not self._has_rounds):
      begin = functools.partial(
        self._begin, self._executions.on_batches, data_adapters.stack(group)
      )
      self._schedule(begin, len(group))
    if is_alone:
      self.drain()
    return self._logs

  def _go_on(self, readers: Any, number: int) -> None:
    """Schedules up to so many steps on splits, until some have been done.

    Those count of which others tell that they do them without this worker.

    Raises:
      StopIteration: there is nothing left to do.
    """
    done, is_idle = self._num_done, True
    while is_idle:
      if readers.finished:
        self._end_epoch(readers)
      under_way = len(self._under_way)
      sizes = list(self._sizes(number))
      attempts: list[Any] = []
      begin = functools.partial(self._begin_on_splits, readers, attempts)
      for size in sizes:
        self._schedule(begin, size, on_splits=True)
      # Others may be at all there is.
      took_in = len(self._under_way) < under_way + len(sizes)
      is_idle = took_in and self._num_done == done
      is_idle &= not any(attempt.sat_out for attempt in attempts)

  def _end_epoch(self, readers: Any) -> None:
    """Ends the epoch, unless the loss of a ps has undone its end."""
    self.drain()
    if not self._executor.surviving(lambda: split_adapter.is_over(readers)):
      return
    if self._executor.surviving(readers.split_progress.is_finished):
      self._model.stop_training = True  # further epochs would be empty
    raise StopIteration

  def drain(self) -> None:
    """Waits for all that is under way, and takes it in."""
    if self._under_way:
      self._executor.rest()
    while self._under_way:
      self._take_in()

  def _schedule(
    self, begin: Begin, num_steps: int, *, on_splits: bool = False
  ) -> None:
    try:
      self._schedule_now(begin, num_steps, on_splits)
    except model_program.NotAdditiveError:
      self.drain()
      self._executions.forget()
      self._attempts.forget()
      self._schedule_now(begin, num_steps, on_splits)
    if self._state.must_wait(num_steps):
      self.drain()
    while len(self._under_way) > self._in_flight():
      self._take_in()

  def _schedule_now(
    self, begin: Begin, num_steps: int, on_splits: bool
  ) -> None:
    handed_on = self._state.hand_on(num_steps)
    with self._forgetting():
      value = transfers.trace_until_stable(lambda: begin(num_steps, handed_on))
    self._under_way.append(
      _Scheduled(value, num_steps, handed_on, on_splits=on_splits)
    )

  def _begin(
    self,
    function: Callable[[int], Any],
    batches: Any,
    num_steps: int,
    handed_on: list[np.ndarray],
  ) -> Any:
    """Begins an execution on batches that are there."""
    schedule = self._executor.schedule
    args: tuple[Any, ...] = (batches, handed_on)
    attempt: Any = None
    if self._sync_session is not None:
      attempt = self._sync_session.attempt(num_steps)
    elif self._marks is not None:
      attempt = attempts_lib.Attempt(self._marks, num_steps)
    if attempt is not None:
      schedule = functools.partial(self._executor.schedule_through, attempt)
      args += attempt.args
    return schedule(function(num_steps), args=args)

  def _begin_on_splits(
    self,
    readers: Any,
    attempts: list[Any],
    num_steps: int,
    handed_on: list[np.ndarray],
  ) -> Any:
    """Begins an execution on as many batches as there are."""
    function, attempt = self._attempts.make(readers, num_steps, handed_on)
    attempts.append(attempt)
    return self._executor.schedule_through(attempt, function, ())

  def _take_in(self) -> None:
    """Takes in the result of the oldest execution."""
    oldest = self._under_way.popleft()
    with self._forgetting():
      fetched = self._executor.fetch(oldest.value)
    parts = fetched or []
    if fetched and not oldest.on_splits:
      parts = [(oldest.num_steps, *fetched)]
    done = 0
    for num_steps, *part in parts:
      done += int(num_steps)
      result = self._executions.result(part, int(num_steps))
      self._state.add(result.metrics)
      self._transfers.count(result.num_bytes, int(num_steps))
      self._logs.clear()
      self._logs.update(self._merged(result.logs))
    if done:
      self._num_done += done
      self._state.take_back(
        oldest.num_steps, oldest.handed_on, result.handed_on, num_done=done
      )

  @contextlib.contextmanager
  def _forgetting(self) -> Iterator[None]:
    """After an error nothing is under way, so that another `fit` can begin."""
    try:
      yield
    except model_program.NotAdditiveError:
      raise
    except BaseException:
      self._under_way.clear()
      self._executor.cancel()
      raise

  def _merged(self, logs: dict[str, np.ndarray]) -> dict[str, Any]:
    """A step's logs, with metrics as they are by now."""
    if not self._state.variables and not self._has_replicas:
      return logs  # of the metrics that the step has worked on
    return {**logs, **self._metrics_among(logs)}

  def _metrics_among(self, logs: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for metric in self._model.metrics:
      result = metric.result()
      results.update(
        result if isinstance(result, dict) else {metric.name: result}
      )
    return {name: results[name] for name in logs if name in results}

  def _check(self, num_steps: int) -> None:
    if self._makes_updates:
      self._transfers.check_execution(num_steps)

  @property
  def _has_replicas(self) -> bool:
    # A replica returns metrics to which the next ones have yet to add.
    return step_replicas.of(self._strategy).are_several

  @property
  def _has_rounds(self) -> bool:
    return self._makes_updates and self._transfers.round_length > 1

  def _sizes(self, number: int) -> Iterator[int]:
    """Cuts a number of steps into what is laid out in one graph."""
    most = self._transfers.unrolled(tf_execution.MAX_UNROLL)
    while number > 0:
      yield min(number, most)
      number -= most


def check(model: keras.Model) -> None:
  """Makes sure that the model's steps can be done elsewhere, in graphs.

  Raises:
    ValueError: the model is compiled otherwise.
  """
  for name in ('jit_compile', 'run_eagerly'):
    if getattr(model, name):
      raise ValueError(
        f'{model.name}: compiled with {name}=True, but its steps run in graphs '
        'whose variables are on other tasks. Compile it with '
        f'{name}=False.'
      )
