"""Bytes on the fullest ps: placement by bytes against placement in turn."""

from collections.abc import Iterator
import math

from benchmarks import models
from benchmarks import runner
from tfps.variables import placement

_NUM_PS = (2, 3, 8)
_BYTES = 4  # of a float


def compare(*, quick: bool) -> Iterator[runner.Comparison]:
  """One comparison for each model and number of ps."""
  for model, shapes in models.ALL.items():
    sizes = [_BYTES * math.prod(shape) for shape in shapes()]
    for num_ps in _NUM_PS[:1] if quick else _NUM_PS:
      yield runner.Comparison(
        f'placement: {model}, {num_ps} ps',
        'MB on fullest',
        ours=[_fullest(placement.ByteBalanced(), sizes, num_ps=num_ps)],
        stock=[_fullest(placement.RoundRobin(), sizes, num_ps=num_ps)],
      )


def _fullest(
  policy: placement.Placement, sizes: list[int], *, num_ps: int
) -> float:
  """Megabytes on the fullest ps when a model makes its variables in turn."""
  loads = [placement.Load()] * num_ps
  for size in sizes:
    (ps,) = policy.assign([size], loads)
    loads[ps] = loads[ps].plus(size)
  return max(load.num_bytes for load in loads) / 1e6
