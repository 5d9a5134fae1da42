"""Admission: which new keys of a table get a row.

Until a key is admitted, it reads an initial value and learns nothing. Policies
count look-ups in training, each of which counts a key once.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import tensorflow as tf

from tfps._compat import open_shapes
from tfps.updates import rows as rows_lib
from tfps.updates.tables import addresses
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import index
from tfps.updates.tables import policy
from tfps.updates.tables import resources
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import weights

CANDIDATES = 'candidate_'
CELLS = 'admission_cells'
_MOST_PER_CELL = 255
OTHER_FILTERS = (
  'filters were restored that are of another false_positive_rate or capacity. '
  'Make the table with those of the saved one. The number of cells of each '
  'restored filter, and what it should be, is'
)


def is_of_keys_without_row(name: str) -> bool:
  """Returns whether a weight of a shard is about keys that have no row."""
  return name == CELLS or name.startswith(CANDIDATES)


class Admission(policy.Policy):
  """Base class of policies that decide which new keys get a row."""

  def weights(self, num_shards: int) -> Sequence[weights.Weight]:
    """Returns the variables that each shard needs for the policy."""
    del num_shards
    return []

  def admits(self, shard: shard_lib.Shard, keys: tf.Tensor) -> tf.Tensor:
    """Counts keys without a row, and decides; runs within a `ps_lock.Job`.

    Args:
      shard: that the keys belong to.
      keys: different int64 keys of shape [n].

    Returns:
      bool tensor of shape [n].
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Counter(Admission):
  """Admission of keys that are looked up often, which counts exactly.

  A key that is not admitted takes some 100 bytes of its ps; `BloomCounter`
  needs less. A key that was evicted is counted anew.

  Attributes:
    min_count: which look-up of a key in training makes its row. Those before
      read an initial value, and nothing is learned from them.

  Raises:
    ValueError: the number is not whole or not positive.
  """

  min_count: int

  def __post_init__(self) -> None:
    self._check_whole('min_count')

  def weights(self, num_shards: int) -> Sequence[weights.Weight]:
    own = weights.of_shard(num_shards, removes=True)
    return weights.prefixed(CANDIDATES, [weights.Weight('rows'), *own])

  def admits(self, shard: shard_lib.Shard, keys: tf.Tensor) -> tf.Tensor:
    candidates = shard.part(CANDIDATES)
    found = candidates.locate_within_lock(keys, inserts=True)
    rows, counted = addresses.rows_of(found), candidates.rows
    numbers = 1 + resources.gather(counted, rows)
    are_admitted = numbers >= self.min_count
    written = resources.scatter(counted, rows, numbers)
    admitted = tf.boolean_mask(rows, are_admitted)
    removed = tf.cond(
      tf.reduce_any(are_admitted),
      lambda: candidates.remove(admitted),
      lambda: tf.constant(False),
    )
    with resources.after(written, removed):
      return tf.identity(are_admitted)


@dataclasses.dataclass(frozen=True)
class BloomCounter(Admission):
  """Admission of keys that are looked up often, counted in bounded memory.

  Keys share counts: a counting Bloom filter (Fan et al., "Summary Cache", 2000)
  of which only the lowest counts of a key are raised (Estan and Varghese, "New
  Directions in Traffic Measurement", 2002). So a key is never admitted later
  than by `Counter`, but may be earlier. A key that was evicted is admitted
  again at once.

  Attributes:
    min_count: as for `Counter`, at most 255.
    false_positive_rate: how many of those keys that have been looked up less
      often are admitted at most, once the filter has counted `capacity` keys.
    capacity: how many keys the filter is made for. It takes
      `-ln(false_positive_rate) / ln(2)^2` bytes for each: 9.6 at a rate of 1%.

  Raises:
    ValueError: a number is out of range, or a count is not whole.
  """

  min_count: int
  false_positive_rate: float = 0.01
  capacity: int = 10_000_000

  def __post_init__(self) -> None:
    self._check_whole('min_count', 'capacity')
    if self.min_count > _MOST_PER_CELL:
      raise ValueError(
        f'{self}: min_count is at most {_MOST_PER_CELL}, which fits a byte. '
        'Counter counts further.'
      )
    if not 0 < self.false_positive_rate < 1:
      raise ValueError(f'{self}: false_positive_rate is between 0 and 1.')

  def weights(self, num_shards: int) -> Sequence[weights.Weight]:
    # It has another length after filters of other shards were restored.
    return [weights.Weight(CELLS, 0, self.filter_length(num_shards), 'uint8')]

  def filter_length(self, num_filters: int) -> int:
    """Returns how many cells a filter has, where all keys have so many."""
    return max(1, math.ceil(self._num_cells / num_filters))

  @property
  def _num_cells(self) -> float:
    bits_per_key = -math.log(self.false_positive_rate) / math.log(2) ** 2
    return self.capacity * bits_per_key

  def admits(self, shard: shard_lib.Shard, keys: tf.Tensor) -> tf.Tensor:
    cells = shard.values[CELLS]
    number = max(1, round(-math.log2(self.false_positive_rate)))
    # Of two hashes all others are made (Kirsch and Mitzenmacher, "Less Hashing,
    # Same Performance", 2006).
    first = index.mixed(keys)[:, tf.newaxis]
    second = index.mixed(first + 1) | 1
    hashes = first + second * tf.range(number, dtype=tf.int64)
    filters = counts_lib.read(shard.counts)[counts_lib.Count.FILTERS]
    num_filters = tf.where(filters > 0, filters, shard.num_shards)
    filters = tf.maximum(filters, 1)
    size = open_shapes.num_rows(cells) // filters
    with resources.after(self._check_length(size, num_filters)):
      size = tf.identity(size)
    own = tf.cast(index.shard_of(keys, filters), tf.int64)[:, tf.newaxis]
    places = own * size + tf.math.floormod(hashes, size)
    held = resources.gather(cells, places)
    numbers = 1 + tf.reduce_min(tf.cast(held, tf.int32), axis=1, keepdims=True)
    numbers = tf.minimum(numbers, _MOST_PER_CELL)
    raised = tf.maximum(held, tf.cast(numbers, tf.uint8))
    written = rows_lib.raise_to(cells, places, raised)
    with resources.after(written):
      return numbers[:, 0] >= self.min_count

  def _check_length(self, length: tf.Tensor, num_filters: tf.Tensor) -> Any:
    """Returns the operation that fails if filters are another policy's."""
    wanted = self._num_cells / tf.cast(num_filters, tf.float64)
    wanted = tf.maximum(tf.cast(tf.math.ceil(wanted), tf.int64), 1)
    return tf.debugging.Assert(
      tf.equal(length, wanted), [f'{self}: {OTHER_FILTERS}', length, wanted]
    )


@dataclasses.dataclass(frozen=True)
class Probability(Admission):
  """Admission of a key at each look-up in training with a probability.

  Attributes:
    p: the probability; a key gets a row after 1 / p look-ups on average.

  Raises:
    ValueError: it is not above 0 and at most 1.
  """

  p: float

  def __post_init__(self) -> None:
    if not 0 < self.p <= 1:
      raise ValueError(f'{self}: p is above 0 and at most 1.')

  def admits(self, shard: shard_lib.Shard, keys: tf.Tensor) -> tf.Tensor:
    del shard
    return tf.random.uniform(tf.shape(keys)) < self.p
