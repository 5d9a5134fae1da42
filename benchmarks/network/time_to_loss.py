"""How long it takes to learn on slow links, and how well it is learnt.

All variants start from the same values and do the same number of steps. For
each it is told when the loss on held-out examples was seen to be as low as is
asked for, and what the model is worth at the end.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import json
import sys

from benchmarks import tables
from benchmarks.network import goals
from benchmarks.network import time_to_loss_task as task
from tfps import testing

_MBIT_PER_SEC = 100.0
_NUM_WORKERS = _NUM_PS = 2
_TIMEOUT_SECS = 1800.0
_TOLERANCE = 0.01
_REFERENCE = 'no codec'


@dataclasses.dataclass(frozen=True)
class Learnt:
  """What came of a variant.

  Attributes:
    variant: its name.
    scores: seconds, steps and held-out loss at each look.
    metric: at the end, held out.
  """

  variant: str
  scores: Sequence[tuple[float, int, float]]
  metric: float

  @property
  def steps_per_sec(self) -> float:
    (_, first, _), *_, (secs, last, _) = self.scores
    return (last - first) / secs

  def secs_to(self, loss: float) -> float | None:
    """The seconds until a loss was seen; None if it never was."""
    return next((secs for secs, _, seen in self.scores if seen <= loss), None)


def compare_flights(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  yield _table('flights', quick=quick)


def compare_images(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  yield _table('images', quick=quick)


def _table(name: str, *, quick: bool) -> tables.Table:
  goal = goals.of(name, quick=quick)
  all_learnt = _learn(name, quick=quick)
  (reference,) = (x.metric for x in all_learnt if x.variant == _REFERENCE)
  secs = [x.secs_to(goal.target_loss) for x in all_learnt]
  steps, metric = goal.num_steps, goal.metric
  return tables.Table(
    name,
    f'{goal.title}, links of {_MBIT_PER_SEC:g} Mbit/s',
    (
      'variant',
      f's to a loss of {goal.target_loss:g}',
      'steps/s',
      f'loss after {steps} steps',
      f'{metric} after {steps} steps',
      f'{metric} against full precision',
    ),
    [
      [
        x.variant,
        'not reached' if to is None else f'{to:.1f}',
        f'{x.steps_per_sec:.3g}',
        f'{x.scores[-1][2]:.4f}',
        f'{x.metric:.4f}',
        against(x.metric, reference),
      ]
      for x, to in zip(all_learnt, secs, strict=True)
    ],
    tables.Bars(f's to a held-out loss of {goal.target_loss:g}', secs),
    measured={x.variant: dataclasses.asdict(x) for x in all_learnt},
  )


def _learn(name: str, *, quick: bool) -> list[Learnt]:
  size = 'quick' if quick else 'full'
  with testing.ProcessCluster(
    _NUM_WORKERS,
    _NUM_PS,
    on_hosts=True,
    mbit_per_sec=_MBIT_PER_SEC,
    commands={'chief': [sys.executable, '-m', task.__name__, name, size]},
    env={'TF_CPP_MIN_LOG_LEVEL': '2'},
  ) as cluster:
    status = cluster.wait('chief', 0, timeout_secs=_TIMEOUT_SECS)
    log = cluster.log('chief', 0)
  if status:
    raise RuntimeError(f'The chief ended with status {status}:\n{log}')
  lines = [line for line in log.splitlines() if line.startswith('{')]
  return [Learnt(**json.loads(line)) for line in lines]


def against(metric: float, reference: float) -> str:
  """How much better or worse, and whether that is too much."""
  change = metric / reference - 1
  mark = ', loses more than 1%' if change < -_TOLERANCE else ''
  return f'{change:+.1%}{mark}'
