"""Has a large variable kept safe again and again.

Usage: keep.py STRATEGY NUM_FLOATS TIMES (replicas | cuts)
"""

import sys

import tensorflow as tf

import tfps

RECOVERIES = {
  'replicas': tfps.Recovery('cuts', replicas=1, replicate_every_secs=3600),
  'cuts': tfps.Recovery('cuts', every_secs=3600, written_by='ps'),
}


def main(name: str, num_floats: int, times: int, how: str) -> None:
  strategy = getattr(tfps, name)(
    tfps.resolve_cluster(), recovery=RECOVERIES[how]
  )
  with strategy.scope():
    variable = tf.Variable(tf.zeros([num_floats]), name='large')
  for _ in range(times):
    strategy.guard.keep()
  del variable
  strategy.close()


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
