"""What each way to update makes of a worker that is slower than the others.

Four workers learn the flights example from two ps. A step takes each as long
as the others; or one of them five times as long. The ways take turns.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import json
import pathlib
import statistics
from typing import Any

from benchmarks import curves
from benchmarks import sides
from benchmarks import tables
from benchmarks import updates_task as task

_GOAL = 0.41
_NUM_ROUNDS = 3
_RATE_SECS = 10.0
_CURVE_SECS = 60.0
_QUICK_WAYS = ('Async()', 'Sync(backup_workers=1)')

Rates = dict[tuple[str, str], list[float]]


def compare(*, quick: bool) -> Iterator[tables.Table | curves.Curves]:
  """A table of rates, and how the losses fall with one slow worker."""
  size = 'quick' if quick else 'full'
  ways = _QUICK_WAYS if quick else tuple(task.WAYS)
  num_rounds = 1 if quick else _NUM_ROUNDS
  rate_secs, curve_secs = (4.0, 4.0) if quick else (_RATE_SECS, _CURVE_SECS)
  with sides.ProcessSide(
    lambda folder: ['-m', task.__name__, size, folder]
  ) as side:
    rates = _rates(side, ways, num_rounds=num_rounds, secs=rate_secs)
    found = {way: _train(side, way, task.ONE_SLOW, curve_secs) for way in ways}
  learnt = [_curve(way, each['curve']) for way, each in found.items()]
  yield _table(rates, found, learnt)
  yield curves.Curves(
    'updates-losses',
    f'Late flights, one of {task.NUM_WORKERS} workers {task.TIMES_SLOWER} '
    'times slower',
    'updates',
    _GOAL,
    learnt,
  )


def _rates(
  side: sides.ProcessSide,
  ways: Sequence[str],
  *,
  num_rounds: int,
  secs: float,
) -> Rates:
  """The updates per second of each way and kind of workers, in rounds."""
  rates: Rates = {
    (way, workers): []
    for way in ways
    for workers in (task.ALIKE, task.ONE_SLOW)
  }
  for _ in range(num_rounds):
    for (way, workers), each in rates.items():
      each.append(_train(side, way, workers, secs)['updates_per_sec'])
  return rates


def _train(
  side: sides.ProcessSide, way: str, workers: str, secs: float
) -> dict[str, Any]:
  side.run(f'{way}|{workers}|', int(secs))
  found: dict[str, Any] = json.loads(
    pathlib.Path(side.folder, 'found.json').read_text()
  )
  return found


def _curve(way: str, looks: Sequence[tuple[float, int, float]]) -> curves.Curve:
  secs, steps, losses = zip(*looks, strict=True)
  return curves.Curve(way, secs, steps, losses)


def _table(
  rates: Rates,
  found: Mapping[str, dict[str, Any]],
  learnt: Sequence[curves.Curve],
) -> tables.Table:
  by_way = {
    way: (rates[way, task.ALIKE], rates[way, task.ONE_SLOW]) for way in found
  }
  kept = {
    way: tables.ratios(slow, alike) for way, (alike, slow) in by_way.items()
  }
  return tables.Table(
    'updates',
    f'{task.NUM_WORKERS} workers and {task.NUM_PS} ps, steps of '
    f'{task.STEP_SECS * 1e3:g} ms; one worker {task.TIMES_SLOWER} times slower',
    (
      'updates',
      'updates/s, all alike',
      'updates/s, one slow',
      'kept',
      'gradients/s, one slow',
      f's to a loss of {_GOAL:g}',
      'updates to it',
      'mean staleness',
      'dropped',
    ),
    [
      [
        way,
        *map(tables.with_spread, by_way[way]),
        tables.with_spread(kept[way]),
        f'{found[way]["gradients_per_sec"]:.3g}',
        _say(curve.secs_to(_GOAL)),
        _say(curve.steps_to(_GOAL)),
        f'{found[way]["mean_staleness"]:.1f}',
        str(found[way]['late']),
      ]
      for way, curve in zip(found, learnt, strict=True)
    ],
    tables.Bars(
      'of the updates per second, kept with one slow worker',
      [statistics.median(each) for each in kept.values()],
    ),
    measured={
      'rates': {f'{way}, {w}': each for (way, w), each in rates.items()},
      'found': dict(found),
    },
  )


def _say(value: float | None) -> str:
  return 'not reached' if value is None else f'{value:.3g}'
