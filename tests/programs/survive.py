"""Trains between graphs although tasks are killed, and says how it gets on.

Usage: survive.py (train | fit) STEPS DIRECTORY TAKE_OVER_SECS REPLICAS
  REPLICATE_EVERY_SECS

The last is 0 for replicas that get each update.
"""

from collections.abc import Iterator
import os
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from tests.support import sleeps
import tfps
from tfps.keras import StopAtStep
from tfps.variables import partitioners


def main(
  how: str,
  steps: int,
  directory: str,
  take_over_secs: float,
  replicas: int,
  replicate_every_secs: float,
) -> None:
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(),
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(
      directory,
      every_secs=0.5,
      take_over_secs=take_over_secs,
      replicas=replicas,
      replicate_every_secs=replicate_every_secs or None,
    ),
  )
  print('pid', os.getpid(), flush=True)
  {'train': train, 'fit': fit}[how](strategy, steps)
  threads = [thread.name for thread in threading.enumerate()]
  print('threads', threads.count('tfps-replicas'), flush=True)
  print('done', flush=True)


def train(strategy: tfps.BetweenGraphStrategy, steps: int) -> None:
  with strategy.scope():
    variables = [
      tf.Variable(0, dtype=tf.int64, trainable=False, name='count'),
      tf.Variable(tf.zeros([5, 2]), name='table'),
      tf.Variable(tf.zeros([3]), name='other'),
    ]

  def step(batch: tf.Tensor) -> None:
    # As training does: reads, computes for a while, writes.
    slow = sleeps.slow(0.003, *[v + 0 for v in variables])
    for variable in variables:
      one = tf.cast(slow, variable.dtype)
      variable.assign_add(one * tf.ones(variable.shape, variable.dtype))

  def say(progress: object) -> None:
    print('at', progress.step, flush=True)
    time.sleep(0.02)

  def until_a_loss() -> Iterator[int]:
    """As an iterator that was in use may end then, although it never ends."""
    num_interruptions = strategy.guard.num_interruptions
    while strategy.guard.num_interruptions == num_interruptions:
      yield 1

  strategy.train(
    step,
    lambda context: tf.data.Dataset.from_generator(
      until_a_loss, output_signature=tf.TensorSpec([], tf.int32)
    ),
    steps=steps,
    steps_per_execution=2,
    hooks=[say],
  )
  for variable in variables:
    values = np.unique(variable.numpy())
    print('values', values.min(), values.max(), flush=True)
  print('repeated', strategy.recovery_report().steps_repeated, flush=True)


def fit(strategy: tfps.BetweenGraphStrategy, steps: int) -> None:
  keras.utils.set_random_seed(1)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), 'mse', steps_per_execution=2)
    model.optimizer.build(model.trainable_variables)
  rng = np.random.default_rng(strategy.task.index)
  x = rng.normal(size=[640, 4]).astype('f')
  y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], 'f')
  data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)
  history = model.fit(
    data,
    epochs=1000,
    steps_per_epoch=50,
    verbose=0,
    callbacks=[_Say(steps)],
  )
  print('loss', history.history['loss'][-1], flush=True)


class _Say(StopAtStep):
  def on_train_batch_end(self, batch: int, logs: object = None) -> None:
    print('at', int(self.model.optimizer.iterations), flush=True)
    time.sleep(0.02)
    super().on_train_batch_end(batch, logs)


_how, _steps, _directory, _take_over_secs, _replicas, _every_secs = sys.argv[1:]
main(
  _how,
  int(_steps),
  _directory,
  float(_take_over_secs),
  int(_replicas),
  float(_every_secs),
)
