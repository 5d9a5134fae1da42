"""Workers that wait for each other, with gradients that are all 1.

Usage: meet.py POLICY STEPS [FILE]: so many with `train`, slowly as long as
there is that file, then 40 with `fit`, of which each worker does 4 fewer than
the one before.
"""

import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfps

_PER_EXECUTION = 2
_POLICIES = {
  'Sync': tfps.updates.Sync(timeout_secs=2),
  'BoundedStaleness': tfps.updates.BoundedStaleness(1, timeout_secs=2),
}


def main(policy: str, steps: int, slowly: str = '') -> None:
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(), updates=_POLICIES[policy]
  )
  for name, work in (('train', train), ('fit', fit)):
    found = work(strategy, steps, slowly)
    strategy.barrier(name, 120)
    tell(strategy, *found)


def tell(strategy, number, optimizer) -> None:
  print('iterations', int(optimizer.iterations), flush=True)
  print('number', float(np.squeeze(number.numpy())), flush=True)
  print('short', strategy.updates_report().short, flush=True)


def train(strategy, steps, slowly):
  with strategy.scope():
    number = tf.Variable(0.0, dtype=tf.float64, name='number')
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([number])

  def step(batch):
    with tf.GradientTape() as tape:
      loss = number * tf.cast(batch, tf.float64)
    optimizer.apply([tape.gradient(loss, number)], [number])

  def say(progress):
    print('at', progress.step, flush=True)
    time.sleep(0.5 if os.path.exists(slowly) else 0.02)

  strategy.train(
    step,
    lambda context: tf.data.Dataset.from_tensors(1).repeat(),
    steps=steps,
    steps_per_execution=_PER_EXECUTION,
    hooks=[say],
  )
  return number, optimizer


def fit(strategy, *_):
  steps = 40 - 4 * strategy.task.index
  with strategy.scope():
    model = keras.Sequential(
      [
        keras.layers.Input((1,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer='zeros'),
      ]
    )
    model.compile(
      keras.optimizers.SGD(1.0),
      lambda _, output: tf.reduce_mean(output),
      steps_per_execution=_PER_EXECUTION,
    )
  ones = np.ones([steps, 1], 'f')
  model.fit(ones, ones, batch_size=1, verbose=0)
  return model.layers[0].kernel, model.optimizer


main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
