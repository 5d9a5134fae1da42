"""What a short training of a DLRM costs by how many steps an execution has.

Each round starts a process anew for each variant, in turns; its workers and ps
are processes, too. All is measured from the call of `fit`, so that tracing and
what the workers prepare are part of it.
"""

from collections.abc import Iterator
import subprocess
import sys

from benchmarks import dlrm_task as task
from benchmarks import tables

_VARIANTS = (
  *(('ours', 1), ('ours', 5), ('ours', 20)),
  *(('stock', 1), ('stock', 20)),
)
_NUM_STEPS, _NUM_ROUNDS = 784, 3
_TIMEOUT_SECS = 600.0


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """A table of all variants."""
  variants = _VARIANTS[1:2] if quick else _VARIANTS
  num_steps = 20 if quick else _NUM_STEPS
  costs: dict[tuple[str, int], list[list[float]]] = {}
  for _ in range(1 if quick else _NUM_ROUNDS):
    for variant in variants:
      costs.setdefault(variant, []).append(_run(*variant, num_steps))
  rows = [
    [
      f'{side}, {number} a call',
      *(tables.with_spread(each) for each in zip(*found, strict=True)),
    ]
    for (side, number), found in costs.items()
  ]
  secs = [sorted(each[1] for each in found) for found in costs.values()]
  yield tables.Table(
    name='dlrm',
    title=f'The first {num_steps} steps of a DLRM',
    columns=(
      *('variant', 's until the first result', 's', 'CPU s'),
      'peak MB of a worker',
    ),
    rows=rows,
    bars=tables.Bars('s', [each[len(each) // 2] for each in secs]),
    notes=['*20 a call* is `steps_per_execution=20`.'],
    measured={f'{side}, {number}': c for (side, number), c in costs.items()},
  )


def _run(side: str, number: int, num_steps: int) -> list[float]:
  """Returns what the program prints; see `dlrm_task`."""
  words = [side, str(number), str(num_steps)]
  ended = subprocess.run(
    [sys.executable, '-m', task.__name__, *words],
    capture_output=True,
    text=True,
    timeout=_TIMEOUT_SECS,
    check=True,
  )
  return [float(value) for value in ended.stdout.split()[-4:]]
