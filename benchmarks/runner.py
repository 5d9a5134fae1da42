"""Runs ours and stock in turns and compares the two.

A machine's speed drifts: other programs, heat, caches. So the two sides take
turns, A B A B, each round gives one ratio, and the median of the ratios counts.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import statistics
import time


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What ours and stock cost, round by round.

  Attributes:
    name: what was compared.
    unit: the unit of the costs, such as 'ms per step'; less is better.
    ours: our cost in each round.
    stock: the stock alternative's cost in the same rounds.
  """

  name: str
  unit: str
  ours: Sequence[float]
  stock: Sequence[float]

  def __post_init__(self) -> None:
    if not self.ours or len(self.ours) != len(self.stock):
      raise ValueError(
        f'{self.name}: {len(self.ours)} rounds of ours and {len(self.stock)} '
        'of stock cannot be compared. Run both in the same rounds.'
      )

  @property
  def ratios(self) -> list[float]:
    """How many times better ours was in each round."""
    return [s / o for o, s in zip(self.ours, self.stock, strict=True)]

  @property
  def median_ratio(self) -> float:
    return statistics.median(self.ratios)

  @property
  def spread(self) -> tuple[float, float]:
    """The lowest and the highest ratio."""
    return min(self.ratios), max(self.ratios)


def compare_times(
  name: str,
  ours: Callable[[], None],
  stock: Callable[[], None],
  *,
  num_steps: int,
  num_rounds: int,
  clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
  """Times two ways to do the same steps, in turns.

  Args:
    name: what is compared.
    ours: does `num_steps` steps our way.
    stock: does as many the stock way.
    num_steps: by which each time is divided.
    num_rounds: how many times each has its turn; one more, the first, which
      pays for tracing and connecting, is not counted.
    clock: seconds.
  """
  costs = in_turns(
    {'ours': ours, 'stock': stock},
    num_steps=num_steps,
    num_rounds=num_rounds,
    clock=clock,
  )
  return Comparison(name, 'ms per step', costs['ours'], costs['stock'])


def in_turns(
  sides: Mapping[str, Callable[[], None]],
  *,
  num_steps: int,
  num_rounds: int,
  clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
  """The milliseconds per step of each side, round by round.

  Args:
    sides: by name, each doing `num_steps` steps.
    num_steps: by which each time is divided.
    num_rounds: how many times each has its turn, after a first that is not
      counted.
    clock: seconds.
  """
  costs: dict[str, list[float]] = {name: [] for name in sides}
  for _ in range(1 + num_rounds):
    for name, run in sides.items():
      start = clock()
      run()
      costs[name].append((clock() - start) * 1e3 / num_steps)
  return {name: each[1:] for name, each in costs.items()}
