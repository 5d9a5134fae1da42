"""A file with flights, encoded, for programs of tests."""

import pathlib

import numpy as np

from tests.support import examples

_NUM_FLIGHTS = 60_000


def write(path: pathlib.Path) -> None:
  """Writes some flights to a file: ids, numbers, late and those held out."""
  data, features = examples.modules('flights', 'data', 'features')
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
