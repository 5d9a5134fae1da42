"""A step that computes nothing: what it costs to reach the ps and back.

Each way to train has a cluster of processes of its own, and they take turns.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib

from benchmarks import null_step_task
from benchmarks import report
from benchmarks import runner
from benchmarks import sides
from benchmarks import tables

_MODES = ('coordinator', 'between graphs')
_NUM_STEPS = {
  'scalar': 400,
  '1 MB': 200,
  '100 MB': 4,
  null_step_task.SPARSE: 200,
}
_NUM_ROUNDS = 7
# What a task imports, in place from the start where little is measured.
_QUICK_PRELOAD = ('tensorflow', 'keras')


def compare(*, quick: bool) -> Iterator[report.Found]:
  """One comparison for each mode, size and number of workers, and a table."""
  rows: list[tuple[str, int, runner.Comparison]] = []
  for num_workers in (1,) if quick else (1, 2, 4):
    with contextlib.ExitStack() as stack:
      by_mode = {
        mode: stack.enter_context(_side(mode, num_workers, quick=quick))
        for mode in ('stock', *_MODES)
      }
      for size in ('scalar',) if quick else _NUM_STEPS:
        for mode in _MODES:
          found = _compare(by_mode, mode, size, num_workers, quick=quick)
          yield found
          rows.append((size, num_workers, found))
  yield _table(rows)


def _table(
  rows: Sequence[tuple[str, int, runner.Comparison]],
) -> tables.Table:
  """A row for each size and number of workers, with all modes."""
  together: dict[tuple[str, int], list[runner.Comparison]] = {}
  for size, num_workers, found in rows:
    together.setdefault((size, num_workers), []).append(found)
  sizes = list(dict.fromkeys(size for size, _ in together))
  keys = sorted(together, key=lambda key: (sizes.index(key[0]), key[1]))
  return tables.Table(
    'null_step',
    'ms per step of all workers together, 1 ps',
    (
      'step reads and adds to',
      'workers',
      'stock',
      *(f'{mode}{what}' for mode in _MODES for what in ('', ', times better')),
    ),
    [
      [
        size,
        str(num_workers),
        tables.with_spread(together[size, num_workers][0].stock),
        *(
          tables.with_spread(values)
          for found in together[size, num_workers]
          for values in (found.ours, found.ratios)
        ),
      ]
      for size, num_workers in keys
    ],
    tables.Bars(
      'times better, between graphs',
      [together[key][-1].median_ratio for key in keys],
    ),
  )


def _compare(
  by_mode: Mapping[str, sides.ClusterSide],
  mode: str,
  size: str,
  num_workers: int,
  *,
  quick: bool,
) -> runner.Comparison:
  num_steps = 10 if quick else _NUM_STEPS[size]
  s = '' if num_workers == 1 else 's'
  return runner.compare_times(
    f'null step: {mode}, {size}, {num_workers} worker{s}',
    lambda: by_mode[mode].run(size, num_steps),
    lambda: by_mode['stock'].run(size, num_steps),
    num_steps=num_steps,
    num_rounds=2 if quick else _NUM_ROUNDS,
  )


def _side(mode: str, num_workers: int, *, quick: bool) -> sides.ClusterSide:
  return sides.ClusterSide(
    lambda folder: ['-m', null_step_task.__name__, mode, folder],
    num_workers,
    1,
    by_workers=mode == 'between graphs',
    preload=_QUICK_PRELOAD if quick else (),
  )
