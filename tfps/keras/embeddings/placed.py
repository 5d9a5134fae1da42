"""Shards of a table, on the ps of the current strategy, and their rows."""

import functools
from typing import Any

import tensorflow as tf

from tfps._compat import loop_gradients
from tfps._compat import reads
from tfps.updates.tables import resources
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import storage as storage_lib
from tfps.wire import sparse_rows


def num_ps(table: Any) -> int:
  """Returns the number of ps; 1 without a strategy.

  Args:
    table: that is to be placed on them.

  Raises:
    ValueError: the strategy has none, or none that the table can use.
  """
  if not tf.distribute.has_strategy():
    return 1
  strategy = tf.distribute.get_strategy()
  ledger = getattr(strategy.extended, 'ledger', None)
  if ledger is None or not ledger.num_ps:
    raise ValueError(
      f'{table.label}: {type(strategy).__name__} has no ps of this package, '
      'which tables are kept on. Use tfps.ParameterServerStrategy or another '
      'strategy with ps.'
    )
  if table.storage is not None and ledger.num_replicas:
    raise ValueError(
      f'{table.label}: {table.storage} is given, and Recovery(replicas=1) '
      'keeps each variable on a second ps, too, which has no storage. Do '
      'without replicas, as snapshots have all rows, or without the storage.'
    )
  number: int = ledger.num_ps
  return number


def shard(
  table: Any, values: dict[str, Any], num_shards: int
) -> shard_lib.Shard:
  """Makes a shard of its variables.

  Args:
    table: that it is of.
    values: the variables by name.
    num_shards: how many shards the table has.

  Raises:
    ValueError: a storage cannot use its directory.
    tf.errors.OpError: a ps is lost.
  """
  rows, name = values['rows'], resources.unique_name(values['rows'])
  if table.storage is not None:
    storage_lib.attach(
      rows, table.storage, name=name, table=table.label, num_shards=num_shards
    )
  return shard_lib.Shard(
    num_shards,
    resources.with_hash_tables(name, values),
    table.admission,
    table.eviction,
    table.branches,
  )


def rows_of(
  shard: shard_lib.Shard, keys: tf.Tensor, *, inserts: bool
) -> tf.Tensor:
  """Returns the rows of keys, in a way that gradients reach them.

  Args:
    shard: that the keys belong to.
    keys: different int64 keys of shape [n].
    inserts: whether those that are new get a row.
  """
  read = functools.partial(shard.read, inserts=inserts)
  reader = reads.reader()
  rows = reader and reader.read_keyed(shard.rows, keys, read)
  if rows is not None:
    return rows
  with tf.device(shard.rows.device), reads.stop_recording():
    rows, addresses = read(keys)
  rows = tf.identity(rows)
  if inserts:
    rows = loop_gradients.refused(
      rows, functools.partial(_refuse_loop, shard.rows.name)
    )
  sparse_rows.noted_distinct(addresses)
  reads.note_rows(
    shard.rows,
    rows,
    lambda gradient: tf.IndexedSlices(
      tf.convert_to_tensor(gradient), addresses
    ),
  )
  return rows


def _refuse_loop(name: str) -> None:
  # TensorFlow would add up gradients of the iterations as dense ones.
  raise ValueError(
    f'{name}: keys are looked up in a loop of a graph, such as tf.while_loop, '
    'tf.map_fn or a layer keras.layers.RNN, through which no gradient reaches '
    'the table. Look all keys up before the loop.'
  )
