"""What the wire is worth: many small variables, in steps per execution."""

from collections.abc import Iterator
import contextlib

from benchmarks import runner
from benchmarks import sides
from benchmarks import wire_task

_NUM_STEPS = 40 * wire_task.STEPS_PER_EXECUTION
_NUM_ROUNDS = 7
_MODES = ('coordinator', 'between graphs')


def compare(*, quick: bool) -> Iterator[runner.Comparison]:
  """One comparison with the stock strategy for each mode and wire."""
  wires = ['fused'] if quick else list(wire_task.WIRES)
  num_steps = 4 * wire_task.STEPS_PER_EXECUTION if quick else _NUM_STEPS
  with contextlib.ExitStack() as stack:
    stock = stack.enter_context(_side('stock', 'unfused'))
    for mode in _MODES[:1] if quick else _MODES:
      for wire in wires:
        with _side(mode, wire) as ours:
          yield runner.compare_times(
            f'wire: {mode}, {wire}',
            lambda ours=ours: ours.run('train', num_steps),
            lambda: stock.run('train', num_steps),
            num_steps=num_steps,
            num_rounds=2 if quick else _NUM_ROUNDS,
          )


def _side(mode: str, wire: str) -> sides.ClusterSide:
  return sides.ClusterSide(
    lambda folder: ['-m', wire_task.__name__, mode, wire, folder],
    2,
    2,
    by_workers=mode == 'between graphs',
  )
