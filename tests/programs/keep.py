"""Saves a large variable, and copies it to its replica, again and again.

Usage: keep.py STRATEGY NUM_FLOATS TIMES
"""

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
  for _ in range(times):
    strategy.guard.keep()
  del variable
  strategy.close()


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
