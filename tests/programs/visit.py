"""Visits numbers between graphs, slowly, and says how often it was at each.

Usage: visit.py TOTAL VISITATION STEP_SECS DIRECTORY

Without a DIRECTORY, which is '-', it does not survive the loss of a ps.
"""

import sys

import tensorflow as tf

import tfps


def main(total: int, visitation: str, step_secs: float, directory: str) -> None:
  recovery = None
  if directory != '-':
    recovery = tfps.Recovery(directory, every_secs=0.5)
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(), recovery=recovery
  )
  with strategy.scope():
    visits = tf.Variable(tf.zeros([total], tf.int64), trainable=False)
    queue = tfps.input.SplitQueue(
      tfps.input.Ranges(total, 50), visitation=visitation
    )

  def step(numbers: tf.Tensor) -> None:
    until = tf.timestamp() + step_secs
    (last,) = tf.while_loop(
      lambda now: now < until, lambda now: (tf.timestamp(),), (until - 1,)
    )
    ones = tf.ones_like(numbers) * tf.cast(last > 0, tf.int64)
    visits.scatter_add(tf.IndexedSlices(ones, numbers))

  result = strategy.train(
    step,
    lambda context: queue.dataset(context).batch(5),
    steps_per_execution=4,
    hooks=[lambda progress: print('at', progress.step, flush=True)],
  )
  counts = visits.numpy()
  print('visits', counts.min(), counts.max(), counts.sum(), flush=True)
  print('batches', result.step, flush=True)
  print(queue.report(), flush=True)


_total, _visitation, _step_secs, _directory = sys.argv[1:]
main(int(_total), _visitation, float(_step_secs), _directory)
