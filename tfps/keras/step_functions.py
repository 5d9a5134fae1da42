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

from tfps import attempts as attempts_lib
from tfps import execution as tf_execution
from tfps import marks as marks_lib
from tfps.keras import execution
from tfps.keras import inputs
from tfps.keras import state as state_lib
from tfps.updates import meetings as meetings_lib
from tfps.wire import transfers


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

  def rest(self) -> None:
    """Says that nothing more is scheduled until all is fetched."""

  def cancel(self) -> None:
    """Drops what has not been fetched."""


@dataclasses.dataclass(frozen=True)
class _Scheduled:
  """An execution that is under way."""

  value: Any
  num_steps: int
  handed_on: list[np.ndarray]


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
    step_fn: execution.StepFn,
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
    self._marks = marks_lib.of(strategy) if makes_updates else None
    self._meetings = meetings_lib.of(strategy) if makes_updates else None
    self._state = state_lib.State(model)
    self._executions = execution.Executions(
      strategy, step_fn, self._state, self._meetings
    )
    self._under_way: deque[_Scheduled] = deque()
    # Keras keeps what it is given and looks at it at the end of an epoch.
    self._logs: dict[str, Any] = {}

  def __call__(self, batches: Iterator[Any]) -> dict[str, Any]:
    """Schedules up to `steps_per_execution` steps.

    Raises:
      StopIteration: there are no more batches.
    """
    number = self._model.steps_per_execution
    if isinstance(batches, inputs.PerWorkerBatches):
      self._check(number)
      iterators = batches.iterators(self._executor)
      for size in self._sizes(number):
        self._schedule(self._executions.on_iterator, iterators, size)
      return self._logs
    is_alone = not isinstance(batches, inputs.Taking)  # the user's own batch
    if not is_alone:
      self._check(number)
    taken = [
      inputs.divide(batch, self._strategy)
      for batch in inputs.take(batches, number, self._executor.surviving)
    ]
    full = next(self._sizes(number))
    for group in inputs.group(taken, full, singly=not self._has_rounds):
      self._schedule(
        self._executions.on_batches, inputs.stack(group), len(group)
      )
    if is_alone:
      self.drain()
    return self._logs

  def drain(self) -> None:
    """Waits for all that is under way, and takes it in."""
    if self._under_way:
      self._executor.rest()
    while self._under_way:
      self._take_in()

  def _schedule(
    self, function: Callable[[int], Any], batches: Any, num_steps: int
  ) -> None:
    try:
      self._schedule_now(function(num_steps), batches, num_steps)
    except execution.NotAdditiveError:
      self.drain()
      self._executions.forget()
      self._schedule_now(function(num_steps), batches, num_steps)
    if self._state.must_wait(num_steps):
      self.drain()
    while len(self._under_way) > self._in_flight():
      self._take_in()

  def _schedule_now(self, function: Any, batches: Any, num_steps: int) -> None:
    handed_on = self._state.hand_on(num_steps)
    schedule = self._executor.schedule
    args: tuple[Any, ...] = (batches, handed_on)
    attempt: Any = None
    if self._meetings is not None:
      attempt = self._meetings.attempt(num_steps)
    elif self._marks is not None:
      attempt = attempts_lib.Attempt(self._marks, num_steps)
    if attempt is not None:
      schedule = functools.partial(self._executor.schedule_through, attempt)
      args += attempt.args
    with self._forgetting():
      value = transfers.traced(lambda: schedule(function, args=args))
    self._under_way.append(_Scheduled(value, num_steps, handed_on))

  def _take_in(self) -> None:
    """Takes in the result of the oldest execution."""
    oldest = self._under_way.popleft()
    with self._forgetting():
      fetched = self._executor.fetch(oldest.value)
    result = self._executions.result(fetched, oldest.num_steps)
    self._state.take_back(oldest.num_steps, oldest.handed_on, result.handed_on)
    self._state.add(result.metrics)
    self._transfers.count(result.num_bytes, oldest.num_steps)
    self._logs.clear()
    self._logs.update(self._merged(result.logs))

  @contextlib.contextmanager
  def _forgetting(self) -> Iterator[None]:
    """After an error nothing is under way, so that another `fit` can begin."""
    try:
      yield
    except execution.NotAdditiveError:
      raise
    except BaseException:
      self._under_way.clear()
      self._executor.cancel()
      raise

  def _merged(self, logs: dict[str, np.ndarray]) -> dict[str, Any]:
    """A step's logs, with metrics as they are by now."""
    if not self._state.variables:  # the step has worked on the metrics
      return logs
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
