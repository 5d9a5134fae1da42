"""Metrics of tables that grow, for this process' registry."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
import weakref

import tensorflow as tf

from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.server import row_store
from tfps.strategies import metrics
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import storage

_Count = counts_lib.Count


def offer(table: Any, read: Callable[[Any], Iterable[Any]]) -> None:
  """Offers the numbers of keys and rows of a table to this process' registry.

  Args:
    table: the table.
    read: gets the table; returns the counts of each shard, from the ps.
  """
  strategy = weakref.ref(tf.distribute.get_strategy())

  def samples(table: Any) -> Iterable[families.Sample]:
    if getattr(strategy(), 'is_closed', False):
      return ()
    return metrics.reading(
      lambda: [*_samples(table.label, read(table)), *_stored(table)]
    )

  registry_lib.of_process().offer(
    f'table {table.label}', table, samples, reads_ps=True
  )


def _samples(name: str, shards: Iterable[Any]) -> list[families.Sample]:
  shards = list(shards)
  keys = sum(int(counts_lib.num_keys(counts)) for counts in shards)
  evicted, late, refused = (
    counts_lib.total(shards, count)
    for count in (_Count.EVICTED, _Count.LATE, _Count.REFUSED)
  )
  return [
    families.Sample(families.TABLE_KEYS, keys, labels=(name,)),
    families.Sample(families.ADMITTED, keys + evicted, labels=(name,)),
    families.Sample(families.REFUSED, refused, labels=(name,)),
    families.Sample(families.EVICTED, evicted, labels=(name,)),
    families.Sample(families.TABLE_LATE, late, labels=(name,)),
  ]


def _stored(table: Any) -> Iterator[families.Sample]:
  """Yields where rows and slots of a table with storage are."""
  if table.storage is None:
    return
  sums = row_store.Counts.sums(
    storage.counts(shard.rows) for shard in table.shards
  )
  for family, label, value in (
    (families.TABLE_ROWS, 'memory', sums.in_memory),
    (families.TABLE_ROWS, 'file', sums.in_file),
    (families.TABLE_BYTES, 'memory', sums.memory_bytes),
    (families.TABLE_BYTES, 'file', sums.file_bytes),
    (families.TABLE_MOVES, 'memory', sums.moved_in),
    (families.TABLE_MOVES, 'file', sums.moved_out),
  ):
    yield families.Sample(family, value, labels=(table.label, label))
