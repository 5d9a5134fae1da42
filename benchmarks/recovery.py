"""What it costs to be able to lose a ps: training with and without recovery.

Each way has a cluster of processes of its own, and they take turns. A cut is
made every few seconds, more often than by default, so that there are some in
each turn.
"""

from collections.abc import Iterator
import contextlib
import statistics

from benchmarks import learned
from benchmarks import recovery_task
from benchmarks import runner
from benchmarks import sides
from benchmarks import tables

_NUM_STEPS = {
  'flights': 1000,
  'digits': 600,
  'small': 3000,
  'large': 800,
  'embedding': 2000,
  'tiny': 40,
}
_LEARNED = {
  'flights': 'Late flights, wide & deep, 512 examples a step',
  'digits': 'Digits, convolutional network, 32 examples a step',
}
_NUM_ROUNDS = 7
_PLAIN = 'no recovery'
_ROWS = {
  'plain': _PLAIN,
  'ready': 'ready, no cut meanwhile',
  'cuts': f'a cut every {recovery_task.EVERY_SECS:g} seconds',
  'replicas': 'replicas=1 besides',
  'snapshots': (
    f'replicas=1 every {recovery_task.REPLICATE_EVERY_SECS:g} second besides'
  ),
}

Costs = dict[str, list[float]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table for each model."""
  for model in ('tiny',) if quick else [m for m in _NUM_STEPS if m != 'tiny']:
    yield _table(model, _measure(model, num_rounds=2 if quick else _NUM_ROUNDS))


def _measure(model: str, *, num_rounds: int) -> Costs:
  num_steps = _NUM_STEPS[model]
  with contextlib.ExitStack() as stack:
    by_name = {
      name: stack.enter_context(_side(model, how))
      for how, name in _ROWS.items()
    }
    return runner.in_turns(
      {
        name: lambda side=side: side.run('train', num_steps)
        for name, side in by_name.items()
      },
      num_steps=num_steps,
      num_rounds=num_rounds,
    )


def _side(model: str, how: str) -> sides.ClusterSide:
  return sides.ClusterSide(
    lambda folder: ['-m', recovery_task.__name__, model, how, folder], 2, 2
  )


def _table(model: str, costs: Costs) -> tables.Table:
  return tables.Table(
    f'recovery-{model}',
    f'{_title(model)}, 2 workers and 2 ps on one machine',
    ('recovery', 'ms per step', 'times without'),
    tables.beside(costs, costs[_PLAIN]),
    tables.Bars(
      'ms per step', [statistics.median(each) for each in costs.values()]
    ),
    measured=costs,
  )


def _title(model: str) -> str:
  size = recovery_task.MODELS[model]
  if isinstance(size, learned.Learned):
    return _LEARNED[model]
  return f'{size.num_variables} variables of {size.num_bytes / 1e6:.2g} MB'
