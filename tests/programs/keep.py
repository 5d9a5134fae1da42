"""Saves a large variable in two ways, and copies it to its replica, repeatedly.

Usage: keep.py STRATEGY NUM_FLOATS TIMES
"""

import os
import sys

import tensorflow as tf

import tfps

RECOVERY = tfps.Recovery(
  'cuts',
  every_secs=3600,
  written_by='ps',
  replicas=1,
  replicate_every_secs=3600,
)


def main(name: str, num_floats: int, times: int) -> None:
  strategy = getattr(tfps, name)(tfps.resolve_cluster(), recovery=RECOVERY)
  with strategy.scope():
    variable = tf.Variable(tf.zeros([num_floats]), name='large')
    checkpoint = tf.train.Checkpoint(variable=variable)
  path = os.path.abspath('checkpoint')  # in the chief's folder
  for _ in range(times):
    strategy.guard.copies.keep()
    # Without an `experimental_io_device`, each ps writes and reads its values.
    checkpoint.read(checkpoint.write(path))
  strategy.close()


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
