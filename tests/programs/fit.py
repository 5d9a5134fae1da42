"""Keras' own fit in each worker; at the end each says what it sees.

Usage: fit.py STEPS: up to so many steps of all workers together.
"""

import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfps
from tfps.keras import StopAtStep


def main(steps: int) -> None:
  strategy = tfps.BetweenGraphStrategy(tfps.resolve_cluster())
  keras.utils.set_random_seed(strategy.task.index)
  with strategy.scope():
    model = keras.Sequential(
      [keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.01), 'mse', steps_per_execution=5)
    model.optimizer.build(model.trainable_variables)
  kernel = model.layers[0].kernel.value
  print('attached', kernel.attached, 'pid', os.getpid(), flush=True)

  x = np.random.default_rng(strategy.task.index).random((320, 8), 'f')
  data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
  counter = _Counter(steps)
  history = model.fit(
    data.repeat().batch(16),
    epochs=1000,
    steps_per_epoch=50,
    verbose=0,
    callbacks=[counter],
  )
  strategy.barrier('end', 120)
  print('own steps', counter.own, flush=True)
  print('iterations', int(model.optimizer.iterations), flush=True)
  print('loss', *history.history['loss'], flush=True)
  print('kernel', float(np.sum(model.layers[0].kernel.numpy())), flush=True)


class _Counter(StopAtStep):
  """Counts this worker's own steps, and takes its time."""

  own = 0

  def on_train_batch_end(self, batch, logs=None):
    self.own += 5
    print('at', int(self.model.optimizer.iterations), flush=True)
    time.sleep(0.03)
    super().on_train_batch_end(batch, logs)


main(int(sys.argv[1]))
