"""A shard of a table keyed by any id, without any server."""

import uuid

import numpy as np
import tensorflow as tf

from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import resources
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import sharing
from tfps.updates.tables import weights
from tfps.variables import growing


class Table:
  """A shard, and functions that look keys up in it.

  Args:
    num_shards: how many the table has.
    width: elements of a row. The first ones have numbers from 0 on.
    **policies: admission and eviction.
  """

  def __init__(self, num_shards=1, *, width=2, **policies):
    number = counts_lib.NUM_INITIAL
    first = np.arange(width * number, dtype='f').reshape(-1, width)
    values = {'rows': growing.opened(tf.Variable(first))}
    given = [policy for policy in policies.values() if policy is not None]
    wanted = [*weights.of_shard(num_shards, removes=bool(given))]
    for policy in given:
      wanted += policy.weights(num_shards)
    for each in wanted:
      value = np.broadcast_to(np.array(each.values, each.dtype), each.length)
      variable = tf.Variable(value)
      values[each.name] = growing.opened(variable) if each.grows else variable
    self.variables = values
    name = f'test/{uuid.uuid4().hex}'
    self.shard = shard_lib.Shard(
      num_shards,
      resources.with_hash_tables(name, values),
      **policies,
      shared=sharing.in_use(),
    )

  def insert(self, keys):
    return self.shard.locate(tf.constant(keys, tf.int64), inserts=True).numpy()

  def find(self, keys):
    return self.shard.locate(tf.constant(keys, tf.int64), inserts=False).numpy()

  def present(self, keys):
    """Returns those of some keys that have a row."""
    return {
      key for key, row in zip(keys, self.find(keys), strict=True) if row >= 0
    }

  def read(self, keys):
    rows, _ = self.shard.read(tf.constant(keys, tf.int64), inserts=False)
    return rows.numpy()

  def count(self, count):
    return int(self.shard.counts[count])

  def values(self):
    return {name: value.numpy() for name, value in self.variables.items()}

  def restore(self, values):
    for name, value in values.items():
      self.variables[name].assign(value)
