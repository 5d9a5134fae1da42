"""Each worker adds 1 to a shared variable, many times; the chief says how much.

Usage: count.py NUM_PER_WORKER
"""

import sys

import tensorflow as tf

import tfps

_PER_CALL = 50


def main(number: int) -> None:
  strategy = tfps.BetweenGraphStrategy(tfps.resolve_cluster())
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False, name='count')

  @tf.function
  def add() -> None:
    for _ in range(_PER_CALL):
      count.assign_add(1)

  strategy.barrier('start', 120)
  for _ in range(number // _PER_CALL):
    add()
  strategy.barrier('end', 120)
  print(strategy.task, 'count', int(count.numpy()), flush=True)


main(int(sys.argv[1]))
