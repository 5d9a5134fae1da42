"""A file with flights, encoded, for programs of tests."""

import pathlib
import sys

import numpy as np

_EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples' / 'flights'
_NUM_FLIGHTS = 60_000


def write(path: pathlib.Path) -> None:
  """Writes some flights to a file: ids, numbers, late and those held out."""
  sys.path.insert(0, str(_EXAMPLE))
  try:
    import data
    import features
  finally:
    sys.path.remove(str(_EXAMPLE))
  sample = data.load().sample(_NUM_FLIGHTS, random_state=1)
  split = features.split(sample)
  firsts = np.cumsum([0, *split.sizes.values()], dtype=np.int32)[:-1]
  np.savez(
    path,
    ids=split.training.ids + firsts,
    numbers=split.training.numbers,
    late=split.training.late,
    held_out_ids=split.held_out.ids + firsts,
    held_out_numbers=split.held_out.numbers,
    held_out_late=split.held_out.late,
  )
