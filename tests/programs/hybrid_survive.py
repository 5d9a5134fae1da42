"""Counts steps on workers and ps of a hybrid although ps are lost.

Usage: hybrid_survive.py (train | fit | loop) STEPS DIRECTORY

Each step subtracts one from all variables. The worker says at which step it is,
and in the end what the variables of each place have counted. From the
environment: EVERY_SECS, REPLICAS, TAKE_OVER_SECS and TIMEOUT_SECS are those of
the `Recovery`, and with NO_RECOVERY there is none.
"""

from collections.abc import Callable
import os
import sys
import time
from typing import Any

from absl import logging
import keras
import numpy as np
import tensorflow as tf

import tfps

_PER_EXECUTION = 2
_PAUSE_SECS = 0.02


class Counting(keras.Model):
  """Variables from which each step subtracts one, through an optimizer."""

  def __init__(self, strategy: tfps.replication.HybridStrategy) -> None:
    super().__init__()
    self._strategy = strategy
    self.held = [tf.Variable(tf.zeros([3]), name=f'held{i}') for i in range(2)]
    self.there = [
      tf.Variable(tf.zeros([3]), name=f'there{i}') for i in range(2)
    ]
    self.calls = tf.Variable(0, dtype=tf.int64, trainable=False, name='calls')
    self.made = keras.optimizers.SGD(1.0)
    self.made.build([*self.held, *self.there])
    self.built = True

  def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
    return self.step(data)

  def step(self, batch: tf.Tensor) -> dict[str, tf.Tensor]:
    variables = [*self.held, *self.there]
    with tf.GradientTape() as tape:
      loss = tf.add_n([tf.reduce_sum(variable) for variable in variables])
    gradients = tape.gradient(loss, variables)
    self.made.apply(
      [tf.convert_to_tensor(gradient) for gradient in gradients], variables
    )
    return {'loss': loss}


def train(counting: Counting, strategy: Any, steps: int) -> None:
  strategy.train(
    counting.step,
    lambda context: tf.data.Dataset.from_tensors(1).repeat(),
    steps=steps,
    steps_per_execution=_PER_EXECUTION,
    hooks=[lambda progress: tell(progress.step)],
  )


def fit(counting: Counting, strategy: Any, steps: int) -> None:
  counting.compile(steps_per_execution=_PER_EXECUTION)
  counting.fit(
    tf.data.Dataset.from_tensors([1]).repeat(),
    steps_per_epoch=steps,
    callbacks=[
      keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: tell(batch)
      )
    ],
    verbose=0,
  )


def loop(counting: Counting, strategy: Any, steps: int) -> None:
  @tf.function
  def add() -> None:
    counting.calls.assign_add(1)

  for number in range(steps):
    strategy.surviving(add)
    tell(number)


def tell(step: int) -> None:
  print('at', step, flush=True)
  time.sleep(_PAUSE_SECS)


def main(how: str, steps: int, directory: str) -> None:
  recovery = None
  if 'NO_RECOVERY' not in os.environ:
    recovery = tfps.Recovery(
      directory,
      every_secs=float(os.environ.get('EVERY_SECS', 0.5)),
      replicas=int(os.environ.get('REPLICAS', 0)),
      take_over_secs=float(os.environ.get('TAKE_OVER_SECS', 60)),
      timeout_secs=float(os.environ.get('TIMEOUT_SECS', 100)),
    )
  strategy = tfps.replication.HybridStrategy(
    tfps.resolve_cluster(),
    recovery=recovery,
    choose=lambda description: (
      'workers' if description.name.startswith('held') else 'ps'
    ),
    timeout_secs=60,
  )
  with strategy.scope():
    counting = Counting(strategy)
  ways: dict[str, Callable[..., None]] = {
    'train': train,
    'fit': fit,
    'loop': loop,
  }
  ways[how](counting, strategy, steps)
  strategy.barrier('trained', 60)
  for name in ('held', 'there'):
    values = [variable.numpy() for variable in getattr(counting, name)]
    print(name, -np.max(values), -np.min(values), flush=True)
  print('calls', int(counting.calls.numpy()), flush=True)
  print('steps', int(strategy.global_step.numpy()), flush=True)
  report = strategy.recovery_report()
  print('repeated', report.steps_repeated, flush=True)
  print('repaired', report.ps_repaired, flush=True)
  strategy.barrier('end', 60)


logging.set_verbosity(logging.INFO)
main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
