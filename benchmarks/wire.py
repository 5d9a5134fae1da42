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

_NUM_STEPS = 20 * wire_task.STEPS_PER_EXECUTION
_NUM_ROUNDS = 5
_MODES = ('coordinator', 'between graphs')
_STOCK, _UNROLLED, _SINGLE = 'stock', 'stock, unrolled', 'single process'
_OTHERS = (_STOCK, _UNROLLED, _SINGLE)

# By mode and variant, the milliseconds per step of each round.
Turns = Mapping[str, Mapping[str, list[float]]]


def compare(*, quick: bool) -> Iterator[report.Found]:
  """One comparison with the stock strategy for each mode and wire."""
  turns = {}
  for mode in _MODES[:1] if quick else _MODES:
    turns[mode] = _in_turns(mode, quick=quick)
    for wire in _wires(quick=quick):
      yield runner.Comparison(
        f'wire: {mode}, {wire}',
        'ms per step',
        ours=turns[mode][wire],
        stock=turns[mode][_STOCK],
      )
  yield table(turns)


def _wires(*, quick: bool) -> list[str]:
  return ['fused'] if quick else list(wire_task.WIRES)


def _in_turns(mode: str, *, quick: bool) -> dict[str, list[float]]:
  num_steps = 4 * wire_task.STEPS_PER_EXECUTION if quick else _NUM_STEPS
  with contextlib.ExitStack() as stack:
    by_name = {name: stack.enter_context(_side(name)) for name in _OTHERS}
    for wire in _wires(quick=quick):
      by_name[wire] = stack.enter_context(_side(mode, wire))
    return runner.in_turns(
      {
        name: lambda side=side: side.run('train', num_steps)
        for name, side in by_name.items()
      },
      num_steps=num_steps,
      num_rounds=2 if quick else _NUM_ROUNDS,
    )


def table(turns: Turns) -> tables.Table:
  """Each mode's variants beside those that it had turns with."""
  everywhere = {
    name: [cost for costs in turns.values() for cost in costs[name]]
    for name in _OTHERS
  }
  by_row = {name: (costs, everywhere) for name, costs in everywhere.items()}
  for mode, costs in turns.items():
    for name in (n for n in costs if n not in everywhere):
      by_row[f'{mode}, {name}'] = costs[name], costs
  rates = {
    name: [1e3 / cost for cost in costs] for name, (costs, _) in by_row.items()
  }
  return tables.Table(
    'wire',
    'Many small variables: 41 of 0.33 MB, 2 workers and 2 ps on one machine',
    ('variant', 'steps/s', 'times stock', 'of a single process'),
    [
      [
        name,
        tables.with_spread(rates[name]),
        tables.with_spread(tables.ratios(others[_STOCK], costs)),
        tables.with_spread(tables.ratios(others[_SINGLE], costs)),
      ]
      for name, (costs, others) in by_row.items()
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
