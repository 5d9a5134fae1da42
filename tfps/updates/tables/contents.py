"""Contents of a shard, read part by part."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.updates import ps_lock
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import shard as shard_lib


def part(
  shard: shard_lib.Shard, first: tf.Tensor, number: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Reads keys and their rows, of one moment, in a graph.

  Args:
    shard: that has them.
    first: int64 scalar, how many rows to pass over.
    number: int64 scalar, how many rows to examine.

  Returns:
    The keys, their rows, and whether there are more.
  """
  found: list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]] = []

  def job(first: tf.Tensor, number: tf.Tensor) -> Sequence[Any]:
    used = counts_lib.read(shard.counts)[counts_lib.Count.USED]
    first += counts_lib.NUM_INITIAL
    rows = tf.range(first, tf.minimum(first + number, used))
    if shard.addresses is not None:
      rows = tf.boolean_mask(rows, shard.addresses.are_used(rows))
    keys, values = (shard.gather(name, rows) for name in ('keys', 'rows'))
    found.append((keys, values, first + number < used))
    return found[0]

  ps_lock.run([ps_lock.Job(shard.counts, job, [first, number])])
  return found[0]
