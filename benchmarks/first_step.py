"""What the first steps of a training cost, beside stock and a single process.

Each round starts a process anew for each side, in turns. Two workers and two ps
are in it, so that its CPU time is that of all tasks.
"""

from collections.abc import Iterator
import subprocess
import sys

from benchmarks import first_step_task as task
from benchmarks import tables

_NUM_ROUNDS = 2
_MAIN = ('single process', 'stock', 'ours')
_OF_ALL = 20  # steps per execution with which all sides are measured
_TIMEOUT_SECS = 600.0

# By how many steps an execution has, what each round of a side costs: seconds
# until the first result, then seconds and CPU seconds of all steps.
Costs = dict[tuple[int, str], list[list[float]]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """A table of all sides and numbers of steps per execution for each model."""
  models = list(task.MODELS)
  for model in models[:1] if quick else models:
    num_tables = task.MODELS[model].num_tables
    least = {task.KEYED: 1, task.ONE_TABLE: 2}
    all_sides = [s for s in task.SIDES if num_tables >= least.get(s, 0)]
    costs: Costs = {}
    for number in (2,) if quick else (1, 8, 20, 32):
      for _ in range(1 if quick else _NUM_ROUNDS):
        for side in all_sides if number == _OF_ALL or quick else _MAIN:
          costs.setdefault((number, side), []).append(_run(side, model, number))
    yield _table(model, costs)


def _table(model: str, costs: Costs) -> tables.Table:
  rows, cpu_secs = [], []
  for (number, side), each in costs.items():
    first, steps, cpu = zip(*each, strict=True)
    stock = [cpu for _, _, cpu in costs[number, 'stock']]
    cpu_secs.append(sorted(cpu)[len(cpu) // 2])
    rows.append(
      [
        f'{side}, {number} a call',
        *(tables.with_spread(secs) for secs in (first, steps, cpu)),
        tables.with_spread(tables.ratios(cpu, stock)),
      ]
    )
  return tables.Table(
    name=f'first-step-{task.MODELS[model].name}',
    title=f'The first {task.NUM_STEPS} steps, {model}',
    columns=(
      *('variant', 's until the first result', 's', 'CPU s'),
      'CPU s, times stock',
    ),
    rows=rows,
    bars=tables.Bars('CPU s', cpu_secs),
    notes=['*20 a call* is `steps_per_execution=20`.'],
    measured={f'{side}, {number}': c for (number, side), c in costs.items()},
  )


def _run(side: str, model: str, number: int) -> list[float]:
  """Returns what the program prints; see `first_step_task`."""
  command = [sys.executable, '-m', task.__name__, side, model, str(number)]
  ended = subprocess.run(
    command,
    capture_output=True,
    text=True,
    timeout=_TIMEOUT_SECS,
    check=True,
  )
  return [float(value) for value in ended.stdout.split()[-3:]]
