"""Each worker adds 1 to shared variables, many times, and says how much it is.

One is added to by an operation, the other by reading and writing under a lock.

Usage: count.py NUM_PER_WORKER
"""

import sys

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import tensorflow as tf

import tfps
from tfps.updates import apply
from tfps.updates import ps_lock

_PER_CALL = 50
_LOCKED_PER_CALL = 5


def main(number: int) -> None:
  strategy = tfps.BetweenGraphStrategy(tfps.resolve_cluster())
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False, name='count')
    total = tf.Variable(tf.zeros([100_000]), trainable=False, name='total')

  def read_and_write() -> list[tf.Operation]:
    return [apply.write(total, apply.read(total) + 1.0)]

  @tf.function
  def add() -> None:
    for _ in range(_PER_CALL):
      count.assign_add(1)
    for _ in range(_LOCKED_PER_CALL):
      ps_lock.run([ps_lock.Job(total, read_and_write)])

  strategy.barrier('start', 120)
  for _ in range(number // _PER_CALL):
    add()
  strategy.barrier('end', 120)
  print(strategy.task, 'count', int(count.numpy()), flush=True)
  least, most = total.numpy().min(), total.numpy().max()
  print(strategy.task, 'total', int(least), int(most), flush=True)


if __name__ == '__main__':
  main(int(sys.argv[1]))
