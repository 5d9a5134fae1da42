"""Starts warm between graphs, twice, and says what a worker has then.

Usage: warm_start.py OLD OTHER TIMEOUT_SECS: two checkpoints, of a table of four
rows and of one of two rows.
"""

import sys

import tensorflow as tf

import tfps
from tfps.variables import partitioners

_NEW = ['d', 'x', 'a', 'y', 'z', 'c']


def main(old: str, other: str, timeout_secs: float) -> None:
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(), partitioners.FixedShards(2)
  )
  with strategy.scope():
    table = tf.Variable(tf.zeros([6, 2]), name='table')
    second = tf.Variable(tf.zeros([3, 2]), name='second')
  for path, variable, vocabularies in (
    (old, table, [tfps.checkpoints.Vocabulary(table, list('abcd'), _NEW)]),
    (other, second, []),
  ):
    result = tfps.checkpoints.warm_start(
      path,
      tf.train.Checkpoint(table=variable),
      vocabularies=vocabularies,
      timeout_secs=timeout_secs,
    )
    print('elsewhere', result.is_elsewhere, result.rows, flush=True)
    values = tf.concat([v.read_value() for v in variable.variables], 0)
    print('values', values.numpy().tolist(), flush=True)
  strategy.barrier('read', 60)


main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
