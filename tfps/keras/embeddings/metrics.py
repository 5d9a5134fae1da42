"""Metrics of tables that grow, for this process' registry."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
import weakref

import tensorflow as tf

from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.strategies import metrics
from tfps.updates.tables import counts as counts_lib


def offer(table: Any, read: Callable[[Any], Iterable[Any]]) -> None:
  """Offers the numbers of keys of a table to this process' registry.

  Args:
    table: kept by a weak reference.
    read: gets the table; returns the counts of each shard, from the ps.
  """
  reference = weakref.ref(table)
  strategy = weakref.ref(tf.distribute.get_strategy())

  def source() -> Iterable[families.Sample]:
    found = reference()
    if found is None or getattr(strategy(), 'is_closed', False):
      return ()
    return metrics.reading(lambda: _samples(found.name, read(found)))

  registry_lib.of_process().offer(f'table {table.name}', source, reads_ps=True)


def _samples(name: str, shards: Iterable[Any]) -> list[families.Sample]:
  shards = list(shards)
  keys = sum(int(counts_lib.num_keys(counts)) for counts in shards)
  evicted = sum(int(counts[counts_lib.Count.EVICTED]) for counts in shards)
  late = sum(int(counts[counts_lib.Count.LATE]) for counts in shards)
  return [
    families.Sample(families.TABLE_KEYS, keys, labels=(name,)),
    families.Sample(families.ADMITTED, keys + evicted, labels=(name,)),
    families.Sample(families.EVICTED, evicted, labels=(name,)),
    families.Sample(families.TABLE_LATE, late, labels=(name,)),
  ]
