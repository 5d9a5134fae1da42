"""How to train: how far, and how much at a time."""

from collections.abc import Mapping
import dataclasses
import math

from absl import logging

from tfps.input import readers as input_feeds
from tfps.training import hooks as hooks_lib
from tfps.training import step_program

_COUNTS = ('steps', 'steps_per_execution', 'max_unroll', 'in_flight_per_worker')

# The step to reach where the end of the input is to be that of training.
ENDLESS = hooks_lib.ENDLESS


@dataclasses.dataclass(frozen=True)
class TrainSpec:
  """How to train.

  Attributes:
    steps: the global step to reach; `ENDLESS` for the end of the input.
    steps_per_execution: how many steps a worker does at a time.
    max_unroll: how many of them to lay out in one graph.
    in_flight_per_worker: executions to keep scheduled for each worker.
    stop_on_nan: whether a metric that is not a number is an error.
    timeout_secs: how long an execution or a checkpoint may take; None is for
      ever.
  """

  steps: int
  steps_per_execution: int = 1
  max_unroll: int = step_program.MAX_UNROLL
  in_flight_per_worker: int = 2
  stop_on_nan: bool = True
  timeout_secs: float | None = None

  def __post_init__(self) -> None:
    for name in _COUNTS:
      value = getattr(self, name)
      if not isinstance(value, int) or value < 1:
        raise ValueError(f'train: {name}={value!r} must be 1 or more.')

  def check_end(self, readers: input_feeds.Readers | None) -> None:
    """Raises ValueError if training would not end."""
    if self.steps == ENDLESS and (readers is None or readers.are_endless):
      raise ValueError(
        'train: steps=None is for input that ends, which is that of a '
        'tfps.input.SplitQueue with a number of epochs. Say how many steps.'
      )

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
