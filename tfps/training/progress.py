"""Progress of training: its rate, its result, and calls of hooks."""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import time

from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.training import hooks as hooks_lib
from tfps.training import train_spec

_RATE_WINDOW = 64


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """Result of training.

  Attributes:
    step: the global step at the end.
    steps: by how many this call advanced the global step.
    metrics: the means over the steps of the last log line.
    secs: how many seconds the call took.
  """

  step: int
  steps: int
  metrics: Mapping[str, float]
  secs: float


class TrainProgress:
  """Progress of one call of `train`; logs it and calls hooks.

  Args:
    spec: the settings.
    hooks: called with the progress, after it was logged.
    log_every_secs: the period of log lines in seconds.
  """

  def __init__(
    self,
    spec: train_spec.TrainSpec,
    hooks: Sequence[hooks_lib.Hook],
    *,
    log_every_secs: float,
  ) -> None:
    self.spec = spec
    self._log = hooks_lib.LogProgress(every_secs=log_every_secs)
    self._hooks = (self._log, *hooks)
    self._started_at = time.monotonic()
    self._start = 0
    self._rate = _Rate()

  @property
  def secs(self) -> float:
    """Seconds since the call."""
    return time.monotonic() - self._started_at

  def begin(self, step: int) -> None:
    """Reports that training begins at a global step."""
    self._start = step
    self._report('begin', step)

  def advance(
    self, step: int, metrics: Mapping[str, float], num_steps: int
  ) -> None:
    """Reports that an execution is done.

    Args:
      step: the global step after it.
      metrics: its means.
      num_steps: how many steps it has done.

    Raises:
      FloatingPointError: a metric is not a number.
    """
    self._rate.add(self.secs, step)
    self.spec.check(metrics, step)
    self._report('step', step, metrics, num_steps)

  def end(self, step: int) -> TrainResult:
    """Reports that training has ended at a global step; returns the result."""
    self._report('end', step)
    return TrainResult(step, step - self._start, self._log.metrics, self.secs)

  def _report(
    self,
    moment: str,
    step: int,
    metrics: Mapping[str, float] | None = None,
    num_steps: int = 0,
  ) -> None:
    progress = hooks_lib.Progress(
      moment=moment,
      step=step,
      steps=self.spec.steps,
      metrics=metrics or {},
      steps_per_sec=self._rate.steps_per_sec(),
      elapsed_secs=self.secs,
      num_steps=num_steps,
    )
    registry = registry_lib.of_process()
    registry.set(families.GLOBAL_STEP, step)
    for name, value in progress.metrics.items():
      registry.set(families.STEP_METRIC, value, name)
    for hook in self._hooks:
      hook(progress)


class _Rate:
  """Steps per second over the latest executions."""

  def __init__(self) -> None:
    self._seen: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)

  def add(self, secs: float, step: int) -> None:
    """Records the global step reached at a time."""
    self._seen.append((secs, step))

  def steps_per_sec(self) -> float:
    """Returns the rate; 0 while unknown."""
    if len(self._seen) < 2:
      return 0.0
    (first_secs, first), (last_secs, last) = self._seen[0], self._seen[-1]
    secs = last_secs - first_secs
    return (last - first) / secs if secs > 0 else 0.0
