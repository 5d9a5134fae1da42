"""Cost of recovery: training with and without snapshots and replicas.

Each variant has its own cluster of processes, and they take turns. A snapshot
is written every few seconds, more often than by default, so that each turn has
some.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import statistics

from benchmarks import learned
from benchmarks import recovery_task
from benchmarks import runner
from benchmarks import sides
from benchmarks import tables

_NUM_STEPS = {
  'flights': 600,
  'digits': 300,
  'small': 2000,
  'large': 500,
  'embedding': 1000,
  'tiny': 40,
}
_LEARNED = {
  'flights': 'Late flights, wide & deep, 512 examples a step',
  'digits': 'Digits, convolutional network, 32 examples a step',
}
_NUM_ROUNDS = 5
# What is small next to what the machine does besides takes many short turns.
_NUM_SHORT_ROUNDS = 25
_STEPS_OF_SHORT = 0.3
_PLAIN = 'no recovery'
_READY = {'plain': _PLAIN, 'ready': 'ready, no snapshot meanwhile'}
_ROWS = {
  'plain': _PLAIN,
  'snapshots': f'a snapshot every {recovery_task.EVERY_SECS:g} seconds',
  'replicas': 'replicas=1 besides',
  'copies': (
    f'replicas=1 every {recovery_task.REPLICATE_EVERY_SECS:g} second besides'
  ),
}

Costs = dict[str, list[float]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """Two tables for each model that learns, and one for each other."""
  if quick:
    costs = _measure('tiny', _ROWS, num_steps=_NUM_STEPS['tiny'], num_rounds=2)
    yield _table('tiny', 'recovery-tiny', costs)
    return
  for model in _LEARNED:
    num_steps = int(_STEPS_OF_SHORT * _NUM_STEPS[model])
    costs = _measure(
      model, _READY, num_steps=num_steps, num_rounds=_NUM_SHORT_ROUNDS
    )
    yield _table(model, f'recovery-ready-{model}', costs)
  for model in [model for model in _NUM_STEPS if model != 'tiny']:
    costs = _measure(
      model, _ROWS, num_steps=_NUM_STEPS[model], num_rounds=_NUM_ROUNDS
    )
    yield _table(model, f'recovery-{model}', costs)


def _measure(
  model: str, rows: Mapping[str, str], *, num_steps: int, num_rounds: int
) -> Costs:
  with contextlib.ExitStack() as stack:
    by_name = {
      name: stack.enter_context(_side(model, how)) for how, name in rows.items()
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


def _table(model: str, name: str, costs: Costs) -> tables.Table:
  return tables.Table(
    name,
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
