"""What all sides of a comparison train: sizes, optimizers and batches.

It needs nothing but NumPy, so that programs of other frameworks have the same.
"""

import dataclasses

import numpy as np

NUM_WORKERS = NUM_PS = 2
STEPS_PER_EXECUTION = 20

# Batches that a worker has, again and again.
NUM_BATCHES = 50

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Mlp:
  """A classifier of dense layers, trained by Adam.

  Attributes:
    sizes: of the input and of each layer; between layers is a ReLU.
    batch: examples of a step.
    rate: of learning.
  """

  sizes: tuple[int, ...] = (784, 256, 128, 10)
  batch: int = 64
  rate: float = 1e-3

  def batches(self, worker: int) -> list[Batch]:
    """A worker's batches: numbers, and the numbers of their classes."""
    random = np.random.default_rng(worker)
    return [
      (
        random.random((self.batch, self.sizes[0]), 'f'),
        random.integers(self.sizes[-1], size=self.batch),
      )
      for _ in range(NUM_BATCHES)
    ]


@dataclasses.dataclass(frozen=True)
class Clicks:
  """Whether ids are clicked: large tables, and two layers; by Adagrad.

  Attributes:
    num_tables: one for each id of an example.
    num_rows: of a table.
    width: of its rows.
    hidden: the size of the layer between, which has a ReLU.
    batch: examples of a step.
    exponent: of Zipf's law, by which few ids are frequent.
    rate: of learning.
  """

  num_tables: int = 1
  num_rows: int = 1_000_000
  width: int = 32
  hidden: int = 16
  batch: int = 512
  exponent: float = 1.2
  rate: float = 1e-2

  def batches(self, worker: int) -> list[Batch]:
    """A worker's batches: ids, and a column of what was clicked.

    Ids have a column for each table, if there are several.
    """
    random = np.random.default_rng(worker)
    shape = [self.batch, self.num_tables] if self.num_tables > 1 else self.batch
    return [
      (
        random.zipf(self.exponent, shape) % self.num_rows,
        random.integers(2, size=(self.batch, 1)).astype('f'),
      )
      for _ in range(NUM_BATCHES)
    ]


MLP = Mlp()
CLICKS = Clicks()
FEATURES = Clicks(
  num_tables=26, num_rows=100_000, width=16, hidden=64, batch=128
)
OF_TABLES = {'clicks': CLICKS, 'features': FEATURES}  # by name of the model
