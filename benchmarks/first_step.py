"""What the first steps of a training cost, beside stock and a single process.

Each round starts a process anew for each side, in turns. Two workers and two ps
are in it, so that its CPU time is that of all tasks.
"""

from collections.abc import Iterator
import subprocess
import sys

from benchmarks import first_step_task as task
from benchmarks import runner

_MODELS = ('MLP', '26 embeddings')
_NUM_ROUNDS = 3
_TIMEOUT_SECS = 600.0


def compare(*, quick: bool) -> Iterator[runner.Comparison]:
  """Time and CPU time for each model and number of steps per execution."""
  for model in _MODELS[:1] if quick else _MODELS:
    for number in (2,) if quick else (1, 8, 20):
      yield from _compare(model, number, 1 if quick else _NUM_ROUNDS)


def _compare(
  model: str, number: int, num_rounds: int
) -> Iterator[runner.Comparison]:
  found: dict[str, list[list[float]]] = {
    how: [] for how in ('ours', 'stock', 'single process')
  }
  for _ in range(num_rounds):
    for how, costs in found.items():
      costs.append(_run(how, model, number))
  first, epoch, cpu = (
    {how: [costs[i] for costs in each] for how, each in found.items()}
    for i in range(3)
  )
  name = f'{model}, {number} steps per execution'
  what = f'first {task.NUM_STEPS} steps'
  for stock in ('stock', 'single process'):
    for label, unit, costs in (
      ('until the first result', 's', first),
      (what, 's', epoch),
      (what, 'CPU s', cpu),
    ):
      yield runner.Comparison(
        f'{label}: {name}, beside {stock}', unit, costs['ours'], costs[stock]
      )


def _run(how: str, model: str, number: int) -> list[float]:
  """Returns what the program prints; see `first_step_task`."""
  command = [sys.executable, '-m', task.__name__, how, model, str(number)]
  ended = subprocess.run(
    command,
    capture_output=True,
    text=True,
    timeout=_TIMEOUT_SECS,
    check=True,
  )
  return [float(value) for value in ended.stdout.split()[-3:]]
