"""Each worker trains a table keyed by any id, on keys that others meet, too.

Each look-up of a key has a gradient of 1, and gradient descent a rate of 1. At
the end each worker prints the number of keys, and the sum of all rows.

Usage: keyed.py NUM_STEPS
"""

import sys

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import keras
import numpy as np
import tensorflow as tf

import tfps

KEYS_PER_STEP = 50


def main(steps: int) -> None:
  strategy = tfps.BetweenGraphStrategy(tfps.resolve_cluster())
  with strategy.scope():
    table = tfps.embeddings.Table(1, 'zeros')
    table.build()
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(table.trainable_variables)

  @tf.function
  def step(keys: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(table.lookup(keys))
    variables = table.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  strategy.barrier('start', 120)
  for number in range(steps):
    first = number * KEYS_PER_STEP
    step(tf.range(first, first + KEYS_PER_STEP, dtype=tf.int64))
  strategy.barrier('end', 120)
  keys = np.arange(steps * KEYS_PER_STEP)
  rows = table.lookup(keys, training=False).numpy()
  print(strategy.task, 'has', table.num_keys(), int(rows.sum()), flush=True)
  strategy.barrier('read', 120)


if __name__ == '__main__':
  main(int(sys.argv[1]))
