"""Counts between graphs in a job whose tasks may be killed, and says how far.

Usage: secured.py STEPS DIRECTORY
"""

import os
import sys
import time

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import tensorflow as tf

import tfps


def main(steps: int, directory: str) -> None:
  cluster = tfps.resolve_cluster()
  print('pid', os.getpid(), flush=True)
  if cluster.task.job == 'ps':
    tfps.serve(cluster)
    return
  strategy = tfps.BetweenGraphStrategy(
    cluster, recovery=tfps.Recovery(directory, every_secs=0.5)
  )
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False, name='count')
    table = tf.Variable(tf.zeros([5, 2]), name='table')

  def step(batch: tf.Tensor) -> None:
    for variable in (count, table):
      variable.assign_add(tf.ones_like(variable))

  def say(progress: object) -> None:
    print('at', progress.step, flush=True)
    time.sleep(0.02)

  strategy.train(
    step,
    lambda context: tf.data.Dataset.from_tensors(1).repeat(),
    steps=steps,
    steps_per_execution=2,
    hooks=[say],
  )
  least, most = table.numpy().min(), table.numpy().max()
  print('values', int(count.numpy()), int(least), int(most), flush=True)
  print('repeated', strategy.recovery_report().steps_repeated, flush=True)


if __name__ == '__main__':
  main(int(sys.argv[1]), sys.argv[2])
