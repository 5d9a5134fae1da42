"""Settings of training: the last step, and the steps of one execution."""

from collections.abc import Mapping
import dataclasses
import math

from absl import logging

from tfps.input import readers as readers_lib
from tfps.training import hooks as hooks_lib

_COUNTS = ('steps', 'steps_per_execution', 'in_flight_per_worker')

# `TrainSpec.steps` of training that ends with its input.
ENDLESS = hooks_lib.ENDLESS


@dataclasses.dataclass(frozen=True)
class TrainSpec:
  """Settings of training.

  Attributes:
    steps: the global step to reach; `ENDLESS` for the end of the input.
    steps_per_execution: how many steps a worker does in one function call.
    in_flight_per_worker: how many executions to keep scheduled per worker.
    stop_on_nan: whether a metric that is not a number is an error.
    timeout_secs: how many seconds an execution or a checkpoint may take; None
      for no limit.

  Raises:
    ValueError: a count is not a positive integer.
  """

  steps: int
  steps_per_execution: int = 1
  in_flight_per_worker: int = 2
  stop_on_nan: bool = True
  timeout_secs: float | None = None

  def __post_init__(self) -> None:
    for name in _COUNTS:
      value = getattr(self, name)
      if not isinstance(value, int) or value < 1:
        raise ValueError(f'train: {name}={value!r} must be 1 or more.')

  def check_end(self, readers: readers_lib.Readers | None) -> None:
    """Checks that training ends.

    Args:
      readers: the readers of the queue; None without a queue.

    Raises:
      ValueError: neither steps nor a finite queue ends it.
    """
    if self.steps == ENDLESS and (readers is None or readers.are_endless):
      raise ValueError(
        'train: steps=None is for input that ends, which is that of a '
        'tfps.input.SplitQueue with a number of epochs. Set steps.'
      )

  def sizes(self, start: int, *, may_be_cut: bool) -> set[int]:
    """Returns the sizes of the executions that lead to the last step.

    Args:
      start: the global step from which to train.
      may_be_cut: whether interrupted executions are counted; single steps then
        do the rest.
    """
    todo = max(0, self.steps - start)
    full = [self.steps_per_execution] * (todo >= self.steps_per_execution)
    return {*full, todo % self.steps_per_execution, int(may_be_cut)} - {0}

  def check(self, metrics: Mapping[str, float], step: int) -> None:
    """Checks that all metrics are numbers; warns unless `stop_on_nan`.

    Args:
      metrics: the means over an execution.
      step: the global step after it.

    Raises:
      FloatingPointError: one is not, and `stop_on_nan` is set.
    """
    for name, value in metrics.items():
      if math.isnan(value):
        message = f'At step {step} the metric {name} is not a number.'
        if self.stop_on_nan:
          raise FloatingPointError(message)
        logging.log_every_n_seconds(logging.WARNING, message, 10)
