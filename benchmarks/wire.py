"""What the wire is worth: many small variables, in steps per execution."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import statistics

from benchmarks import report
from benchmarks import runner
from benchmarks import sides
from benchmarks import tables
from benchmarks import wire_task

_NUM_STEPS = 40 * wire_task.STEPS_PER_EXECUTION
_NUM_ROUNDS = 7
_MODES = ('coordinator', 'between graphs')
_STOCK, _UNROLLED, _SINGLE = 'stock', 'stock, unrolled', 'single process'
_OTHERS = (_STOCK, _UNROLLED, _SINGLE)

# For each variant, the milliseconds per step of all in its rounds.
Turns = Mapping[str, Mapping[str, list[float]]]


def compare(*, quick: bool) -> Iterator[report.Found]:
  """One comparison with the stock strategy for each mode and wire."""
  turns = {}
  with contextlib.ExitStack() as stack:
    others = {name: stack.enter_context(_side(name)) for name in _OTHERS}
    for mode in _MODES[:1] if quick else _MODES:
      for wire in ['fused'] if quick else wire_task.WIRES:
        name = f'{mode}, {wire}'
        with _side(mode, wire) as ours:
          turns[name] = _in_turns({**others, name: ours}, quick=quick)
        yield runner.Comparison(
          f'wire: {name}',
          'ms per step',
          ours=turns[name][name],
          stock=turns[name][_STOCK],
        )
  yield table(turns)


def _in_turns(
  by_name: Mapping[str, sides.Side], *, quick: bool
) -> dict[str, list[float]]:
  num_steps = 4 * wire_task.STEPS_PER_EXECUTION if quick else _NUM_STEPS
  return runner.in_turns(
    {
      name: lambda side=side: side.run('train', num_steps)
      for name, side in by_name.items()
    },
    num_steps=num_steps,
    num_rounds=2 if quick else _NUM_ROUNDS,
  )


def table(turns: Turns) -> tables.Table:
  everywhere = {
    name: [cost for each in turns.values() for cost in each[name]]
    for name in _OTHERS
  }
  by_row = {**dict.fromkeys(_OTHERS, everywhere), **turns}
  rates = {
    name: [1e3 / cost for cost in costs[name]] for name, costs in by_row.items()
  }
  return tables.Table(
    'wire',
    'Many small variables: 41 of 0.33 MB, 2 workers and 2 ps on one machine',
    ('variant', 'steps/s', 'times stock', 'of a single process'),
    [
      [
        name,
        tables.with_spread(rates[name]),
        tables.with_spread(tables.ratios(costs[_STOCK], costs[name])),
        tables.with_spread(tables.ratios(costs[_SINGLE], costs[name])),
      ]
      for name, costs in by_row.items()
    ],
    tables.Bars(
      'steps/s of all workers together',
      [statistics.median(each) for each in rates.values()],
      [statistics.median(rates[_SINGLE])] * len(rates),
      'a single process',
    ),
    measured=turns,
  )


def _side(mode: str, wire: str = '') -> sides.Side:
  def command(folder: str) -> list[str]:
    return ['-m', wire_task.__name__, mode, wire, folder]

  if mode == _SINGLE:
    return sides.ProcessSide(command)
  return sides.ClusterSide(command, 2, 2, by_workers=mode == 'between graphs')
