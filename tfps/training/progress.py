"""The course that training takes: how fast it is, and who is told."""

from collections import deque
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import time

from tfps.training import hooks as hooks_lib
from tfps.training import train_spec

_RATE_WINDOW = 64


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


class TrainProgress:
  """Where one call of `train` stands.

  Args:
    plan: how to train.
    hooks: get the progress, after the log has.
    log_every_secs: how often to log a line.
    clock: seconds that only go forward.
  """

  def __init__(
    self,
    plan: train_spec.TrainSpec,
    hooks: Sequence[hooks_lib.Hook],
    *,
    log_every_secs: float,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self.plan = plan
    self._log = hooks_lib.LogProgress(every_secs=log_every_secs)
    self._hooks = (self._log, *hooks)
    self._clock = clock
    self._started_at = clock()
    self._start = 0
    self._rate = _Rate()

  @property
  def secs(self) -> float:
    """Since the call."""
    return self._clock() - self._started_at

  def begin(self, step: int) -> None:
    """Tells that training begins, at a global step."""
    self._start = step
    self._tell('begin', step)

  def go_on(self, step: int, metrics: Mapping[str, float]) -> None:
    """Tells that an execution is done.

    Args:
      step: the global step after it.
      metrics: its means.

    Raises:
      FloatingPointError: a metric is not a number.
    """
    self._rate.add(self.secs, step)
    self.plan.check(metrics, step)
    self._tell('step', step, metrics)

  def end(self, step: int) -> TrainResult:
    """Tells that training has ended, at a global step."""
    self._tell('end', step)
    return TrainResult(step, step - self._start, self._log.metrics, self.secs)

  def _tell(
    self, moment: str, step: int, metrics: Mapping[str, float] | None = None
  ) -> None:
    progress = hooks_lib.Progress(
      moment=moment,
      step=step,
      steps=self.plan.steps,
      metrics=metrics or {},
      steps_per_sec=self._rate.steps_per_sec(),
      elapsed_secs=self.secs,
    )
    for hook in self._hooks:
      hook(progress)


class _Rate:
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
