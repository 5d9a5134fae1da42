"""Where each millisecond of a step with a ps goes: one worker, one ps.

The steps of one training are built up: first an execution of steps that do
nothing, then they fetch the parameters, then they compute gradients, then they
send these. What each part adds is the difference to the one before, so that the
parts add up to a step.
"""

from collections.abc import Iterator
import contextlib
import statistics

from benchmarks import overhead_task
from benchmarks import runner
from benchmarks import sides
from benchmarks import tables

_NUM_ROUNDS = 7
_NUM_STEPS = {'small': 800, 'large': 120, 'tiny': 40}
_SINGLE, _STOCK, _ALL = 'single process', 'stock, unrolled', 'all'
_MODELS = ('small', 'large')
_PARTS = {
  'nothing': 'coordination and input',
  'pull': 'pull',
  'pull and compute': 'compute',
  _ALL: 'push and apply',
}

Costs = dict[str, list[float]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table for each model."""
  for model in ('tiny',) if quick else _MODELS:
    yield _table(model, _measure(model, num_rounds=2 if quick else _NUM_ROUNDS))


def _measure(model: str, *, num_rounds: int) -> Costs:
  num_steps = _NUM_STEPS[model]
  with contextlib.ExitStack() as stack:
    alone = stack.enter_context(
      sides.ProcessSide(lambda folder: _command(model, _SINGLE, folder))
    )
    cluster = stack.enter_context(
      sides.ClusterSide(lambda folder: _command(model, 'cluster', folder), 1, 1)
    )
    return runner.in_turns(
      {
        what: lambda what=what: (alone if what == _SINGLE else cluster).run(
          what, num_steps
        )
        for what in (_SINGLE, *overhead_task.WHAT)
      },
      num_steps=num_steps,
      num_rounds=num_rounds,
    )


def _command(model: str, where: str, folder: str) -> list[str]:
  return ['-m', overhead_task.__name__, model, where, folder]


def _table(model: str, costs: Costs) -> tables.Table:
  size = overhead_task.MODELS[model]
  shown = rows(costs)
  return tables.Table(
    f'overhead-{model}',
    f'One worker and one ps on one machine: {size.num_variables} variables of '
    f'{size.num_bytes / 1e6:.2g} MB',
    ('what', 'ms per step', 'of a single process'),
    tables.beside(shown, costs[_SINGLE]),
    tables.Bars(
      'ms per step',
      [statistics.median(each) for each in shown.values()],
      [statistics.median(costs[_SINGLE])] * len(shown),
      'a single process',
    ),
    measured=costs,
  )


def rows(costs: Costs) -> Costs:
  """What to show: whole steps, and the parts of ours."""
  before = [0.0] * len(costs[_ALL])
  parts = {}
  for what, name in _PARTS.items():
    added = [c - b for c, b in zip(costs[what], before, strict=True)]
    parts[f'- {name}'] = added
    before = costs[what]
  return {
    _SINGLE: costs[_SINGLE],
    'stock, unrolled': costs[_STOCK],
    'ours, fused': costs[_ALL],
    **parts,
    'ours, prefetch 1': costs['prefetch 1'],
  }
