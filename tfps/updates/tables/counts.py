"""Counts of a table's shard, elements of one variable on its ps."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import enum
from typing import Any

import tensorflow as tf


class Count(enum.IntEnum):
  """Element of the variable.

  Attributes:
    USED: rows that belong to a key or have belonged to one, and those of
      initial values.
    DIGEST: sum over all keys that tells which keys are in which rows.
    NUM_SHARDS: shards of the table.
    FREE: rows that belong to no key any more.
    EVICTED: keys that were evicted.
    LATE: rows of updates that were dropped, because their keys were evicted
      between look-up and update.
    LOOKUPS: look-ups in training, counted if an eviction needs them.
    HAND: where eviction goes on to examine rows.
    SWEEP_AT: when eviction next looks for keys that have expired.
    FILTERS: how many filters the cells of an admission are divided into, by the
      shard that a key would belong to if there were so many; 0 for one.
    REFUSED: keys that had no row and that an admission refused; a key counts at
      each look-up.
  """

  USED = 0
  DIGEST = 1
  NUM_SHARDS = 2
  FREE = 3
  EVICTED = 4
  LATE = 5
  LOOKUPS = 6
  HAND = 7
  SWEEP_AT = 8
  FILTERS = 9
  REFUSED = 10


# The first rows belong to no key: they have the values of keys that are new.
NUM_INITIAL = 1024


def initial(num_shards: int) -> list[int]:
  """Returns the counts of a shard without keys."""
  counts = [0] * len(Count)
  counts[Count.USED] = NUM_INITIAL
  counts[Count.NUM_SHARDS] = num_shards
  return counts


def read(variable: Any) -> Sequence[tf.Tensor]:
  """Returns the counts, an int64 scalar for each `Count`."""
  counts = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.int64)
  return list(tf.unstack(counts, num=len(Count)))


def add(variable: Any, changes: Mapping[Count, Any]) -> Any:
  """Adds to counts, at once and beside others; returns the operation."""
  values = [tf.cast(changes.get(count, 0), tf.int64) for count in Count]
  return tf.raw_ops.AssignAddVariableOp(
    resource=variable.handle, value=tf.stack(values)
  )


def total(shards: Iterable[Any], count: Count) -> int:
  """Returns the sum of a count over shards, given the counts of each."""
  return sum(int(counts[count]) for counts in shards)


def num_keys(counts: Any) -> Any:
  """Returns how many keys have a row, given the counts."""
  return counts[Count.USED] - NUM_INITIAL - counts[Count.FREE]
