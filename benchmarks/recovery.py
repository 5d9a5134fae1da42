"""What it costs to be able to lose a ps: training with and without cuts.

Both have clusters of processes of their own, and take turns. A cut is made
every few seconds, more often than by default, so that there are some in each
turn.
"""

from collections.abc import Iterator

from benchmarks import recovery_task
from benchmarks import runner
from benchmarks import sides

_NUM_STEPS = {'small': 3000, 'large': 800, 'tiny': 40}
_NUM_ROUNDS = 7


def compare(*, quick: bool) -> Iterator[runner.Comparison]:
  """One comparison for each model."""
  for model in ('tiny',) if quick else ('small', 'large'):
    with _side(model, 'kept') as kept, _side(model, 'plain') as plain:
      num_steps = _NUM_STEPS[model]
      yield runner.compare_times(
        f'recovery: a cut every {recovery_task.EVERY_SECS:g} seconds, {model} '
        'model, against none',
        lambda kept=kept, number=num_steps: kept.run('train', number),
        lambda plain=plain, number=num_steps: plain.run('train', number),
        num_steps=num_steps,
        num_rounds=2 if quick else _NUM_ROUNDS,
      )


def _side(model: str, how: str) -> sides.ClusterSide:
  return sides.ClusterSide(
    lambda folder: ['-m', recovery_task.__name__, model, how, folder], 2, 2
  )
