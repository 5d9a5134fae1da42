"""Hooks: callables that training calls with its progress.

`coordinator.train(..., hooks=[hooks.Every(print, steps=100)])`
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import datetime
import math
import sys
from typing import Protocol

from absl import logging

# `Progress.steps` of training that ends with its input.
ENDLESS = sys.maxsize


@dataclasses.dataclass(frozen=True)
class Progress:
  """Progress of training at one moment.

  Attributes:
    moment: 'begin', once before the first execution; 'step', after each
      execution; 'end', once after the last checkpoint, unless training fails.
    step: the global step.
    steps: the global step at which training ends; `ENDLESS` if it ends with its
      input.
    metrics: the means over the steps of this execution; empty at 'begin' and
      'end', and for an execution that was interrupted.
    steps_per_sec: the rate over the latest executions; 0 while unknown.
    elapsed_secs: seconds since the beginning of this call.
    num_steps: how many steps `metrics` are means over, those of this execution.
      The global step may advance by another number, as with updates of all
      workers, whose executions of the same steps end one after another.
  """

  moment: str
  step: int
  steps: int
  metrics: Mapping[str, float]
  steps_per_sec: float
  elapsed_secs: float
  num_steps: int = 0

  @property
  def eta_secs(self) -> float:
    """Seconds until the end at the current rate; infinite while unknown."""
    if self.step >= self.steps:
      return 0.0
    if self.steps == ENDLESS:
      return math.inf
    return _ratio(self.steps - self.step, self.steps_per_sec, math.inf)


class Hook(Protocol):
  """Interface of hooks: called on the training thread; errors end training."""

  def __call__(self, progress: Progress, /) -> object: ...


class Every:
  """Hook that calls another hook periodically, and at the end.

  Args:
    hook: the hook to call.
    secs: the least number of seconds between calls.
    steps: the least number of steps between calls.

  Raises:
    ValueError: not exactly one of `secs` and `steps` is given.
  """

  def __init__(
    self,
    hook: Hook,
    *,
    secs: float | None = None,
    steps: int | None = None,
  ) -> None:
    if (secs is None) == (steps is None):
      raise ValueError('Every: give either secs or steps.')
    self._hook = hook
    self._secs = math.inf if secs is None else secs
    self._steps = math.inf if steps is None else steps
    self._last = (0.0, 0)

  def __call__(self, progress: Progress) -> None:
    now = (progress.elapsed_secs, progress.step)
    if progress.moment == 'begin':
      self._last = now
    elif progress.moment == 'end' or self._is_due(*now):
      self._last = now
      self._hook(progress)

  def _is_due(self, secs: float, step: int) -> bool:
    return secs - self._last[0] >= self._secs or (
      step - self._last[1] >= self._steps
    )


class Mean:
  """Mean of each metric over the steps since it was last taken."""

  def __init__(self) -> None:
    self._totals: dict[str, float] = {}
    self._num_steps = 0

  def add(self, metrics: Mapping[str, float], num_steps: int) -> None:
    """Adds the means over some steps.

    Args:
      metrics: the means; empty if unknown, which adds nothing.
      num_steps: how many steps they are means over.
    """
    self._num_steps += num_steps if metrics else 0
    for name, value in metrics.items():
      self._totals[name] = self._totals.get(name, 0.0) + value * num_steps

  def take(self) -> dict[str, float]:
    """Returns the means, none if there were no steps, and resets them."""
    totals = self._totals if self._num_steps else {}
    means = {n: t / self._num_steps for n, t in totals.items()}
    self.__init__()  # type: ignore[misc]
    return means


class LogProgress:
  """Hook that logs a line per period: step, steps/s, time left, mean metrics.

  The first execution also prepares the step on the workers. It has a line of
  its own, and does not count for the rate.

  Args:
    every_secs: the period in seconds.
    log: gets the line.

  Attributes:
    metrics: the means of the last line with metrics.
  """

  def __init__(
    self,
    *,
    every_secs: float = 10.0,
    log: Callable[[str], object] = logging.info,
  ) -> None:
    self.metrics: dict[str, float] = {}
    self._every_secs = every_secs
    self._log = log
    self._mean = Mean()
    self._is_prepared = False
    # Seconds and step since which the rate is measured.
    self._since = (0.0, 0)
    self._step_in_line = 0

  def __call__(self, progress: Progress) -> None:
    now = (progress.elapsed_secs, progress.step)
    if progress.moment == 'begin':
      self._step_in_line = progress.step
      self._since, self._is_prepared = now, False
      if progress.step < progress.steps:
        self._log('Preparing the step.')
      return
    self._mean.add(progress.metrics, progress.num_steps)
    if progress.moment == 'step' and not self._is_prepared:
      self._since, self._is_prepared = now, True
      self._log(f'{_place(progress)}, prepared in {now[0]:.1f} s')
      return
    secs = progress.elapsed_secs - self._since[0]
    if secs >= self._every_secs or self._is_last(progress):
      self._write(progress, secs)

  def _is_last(self, progress: Progress) -> bool:
    return progress.moment == 'end' and progress.step > self._step_in_line

  def _write(self, progress: Progress, secs: float) -> None:
    rate = _ratio(progress.step - self._since[1], secs, 0.0)
    means = self._mean.take()
    self.metrics = means or self.metrics
    self._since = (progress.elapsed_secs, progress.step)
    self._step_in_line = progress.step
    self._log(_line(progress, rate, means))


def _line(progress: Progress, rate: float, metrics: Mapping[str, float]) -> str:
  facts = [_place(progress)]
  if rate:  # otherwise all was done in the first execution
    facts.append(f'{rate:.1f} steps/s')
  if progress.steps != ENDLESS:
    # Asynchronous workers may exceed the last step slightly.
    steps_left = max(0, progress.steps - progress.step)
    left = round(_ratio(steps_left, rate, 0.0))
    facts.append(f'{datetime.timedelta(seconds=left)} left')
  return ', '.join([*facts, *_values(metrics)])


def _place(progress: Progress) -> str:
  if progress.steps == ENDLESS:
    return f'step {progress.step}'
  return f'step {progress.step} of {progress.steps}'


def _values(metrics: Mapping[str, float]) -> list[str]:
  return [f'{name} {value:.6g}' for name, value in metrics.items()]


def _ratio(amount: float, by: float, otherwise: float) -> float:
  return amount / by if by > 0 else otherwise
