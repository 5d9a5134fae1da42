"""Synthetic rows in Criteo's format, from which there is something to learn.

Each id has a hidden weight and a hidden vector, each number a hidden weight. A
click is drawn with the logistic function of their sum and of products of the
vectors of some pairs of ids. Ids are about as frequent as Zipf's law has it, so
that most are rare; in some categories the newest ids are the most frequent, as
advertisements are, and new ones appear all the time.
"""

from collections.abc import Iterator

import numpy as np
import rows as rows_lib

# How many ids a category has, and how fast they become rarer.
_CATEGORIES = (
  [(4, 0.5), (10, 0.8), (20, 0.9), (30, 0.95), (100, 1.05), (300, 1.1)]
  + [(600, 1.1), (1_500, 1.1), (3_000, 1.15), (5_000, 1.15)]
  + [(10_000, 1.2)] * 4
  + [(100_000, 1.25)] * 4
  + [(1_000_000, 1.3)] * 4
  + [(10_000_000, 1.3)] * 4
)
# In these a new id appears every so many rows.
_ROWS_PER_NEW_ID = {15: 500, 19: 200, 22: 200, 25: 50}
# Of which the products of vectors count.
_PAIRS = [(i, (i + 7) % 26) for i in range(0, 26, 2)]

_VECTOR = 4
_NUM_LARGE = 16  # the last categories; the others tell more
_ID_WEIGHTS = np.repeat([0.42, 0.24], [26 - _NUM_LARGE, _NUM_LARGE])
_PAIR_WEIGHT, _NUMBER_WEIGHT = 0.12, 0.15
_BIAS = -1.3
# Means of the numbers' logarithms.
_MEANS = np.linspace(0.5, 2.5, rows_lib.NUM_NUMBERS)
_MISSING_ID, _MISSING_NUMBER = 0.03, 0.2
_NUM_HIDDEN = 1 << 16  # weights and vectors, which ids share


class Clicks:
  """Source of synthetic rows, endless and the same for the same seed.

  Args:
    seed: of the rows, and of what is hidden.
  """

  def __init__(self, seed: int) -> None:
    self._random = np.random.default_rng(seed)
    normal = self._random.normal
    self._weights = normal(size=_NUM_HIDDEN)
    self._vectors = normal(size=(_NUM_HIDDEN, _VECTOR)) / _VECTOR**0.5
    self._of_numbers = _NUMBER_WEIGHT * normal(size=rows_lib.NUM_NUMBERS)
    self._num_rows = 0

  def draw(self, number: int) -> tuple[rows_lib.Rows, np.ndarray]:
    """Returns the next rows, and the probability of a click of each.

    Args:
      number: how many rows.
    """
    random = self._random
    ids = self._ids(number)
    ids[random.random(ids.shape) < _MISSING_ID] = rows_lib.MISSING_ID
    shape = number, rows_lib.NUM_NUMBERS
    numbers = np.floor(random.lognormal(_MEANS, size=shape))
    numbers[random.random(numbers.shape) < _MISSING_NUMBER] = np.nan
    clicks = 1 / (1 + np.exp(-self._logits(ids, numbers)))
    clicked = (random.random(number) < clicks).astype(np.int64)
    self._num_rows += number
    return rows_lib.Rows(clicked, numbers.astype(np.float32), ids), clicks

  def batches(self, number: int, size: int) -> Iterator[rows_lib.Rows]:
    """Yields so many rows, some at a time."""
    for first in range(0, number, size):
      yield self.draw(min(size, number - first))[0]

  def _ids(self, number: int) -> np.ndarray:
    """Returns ids of shape [number, 26], numbers of 32 bits."""
    columns = []
    for i, (size, power) in enumerate(_CATEGORIES):
      uniform = self._random.random(number)
      # The inverse of the distribution of density x^-power from 1 to size.
      last = size ** (1 - power)
      rank = (1 + uniform * (last - 1)) ** (1 / (1 - power))
      columns.append(np.floor(rank).astype(np.int64))
      if i in _ROWS_PER_NEW_ID:
        newest = (self._num_rows + np.arange(number)) // _ROWS_PER_NEW_ID[i]
        columns[-1] = newest - columns[-1]
    return _mixed(np.stack(columns, 1) * 32 + np.arange(len(columns)))

  def _logits(self, ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    is_given = ids != rows_lib.MISSING_ID
    hidden = ids % _NUM_HIDDEN
    vectors = self._vectors[hidden] * is_given[..., np.newaxis]
    left, right = (vectors[:, list(side)] for side in zip(*_PAIRS, strict=True))
    logs = np.nan_to_num(np.log1p(numbers) - _MEANS)
    return (
      _BIAS
      + (self._weights[hidden] * is_given) @ _ID_WEIGHTS
      + _PAIR_WEIGHT * (left * right).sum((1, 2))
      + logs @ self._of_numbers
    )


def _mixed(values: np.ndarray) -> np.ndarray:
  """Returns 32 bits that look random, others for other values; never 0."""
  mixed = values.astype(np.uint64)
  for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
    mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
  return np.maximum((mixed >> np.uint64(32)).astype(np.int64), 1)
