"""Visits numbers of a queue with a hybrid, and keeps what has come of it.

Usage: hybrid_visit.py HOW TOTAL SIZE EPOCHS FOLDER

HOW is 'train', 'fit', or 'model', which fits the one of `small` instead. There
are SIZE numbers in a split. Each worker writes what it has to FOLDER, as
INDEX.npz.

From the environment: STEP_SECS is how long a step takes, VISITATION the
queue's, and TIMEOUT_SECS the strategy's. STEPS are those of a first call, after
which another one does the rest. With SLOW, worker:1 takes its time for each
execution until there is a file FOLDER/go.
"""

from collections.abc import Callable
import os
import pathlib
import sys
from typing import Any

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from tests.replication import small
import tfps

BATCH = 5
PER_EXECUTION = 2

_SLOW_SECS = 1.0
_STEP_SECS = float(os.environ.get('STEP_SECS', 0))


class Shares:
  """What each batch, by its first number, has of the updates.

  Attributes:
    visits: how often each number was visited.
    held: what they have of updates of what workers have.
    there: what they have of updates of what is on the ps.
    optimizer: makes the updates.
  """

  def __init__(self, total: int) -> None:
    zeros = tf.zeros([total], tf.float64)
    self.visits = tf.Variable(tf.zeros([total], tf.int64), trainable=False)
    self.held = tf.Variable(zeros, name='held')
    self.there = tf.Variable(zeros, name='there')
    self.optimizer = keras.optimizers.SGD(1.0)
    self.optimizer.build([self.held, self.there])

  def step(self, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
    until = tf.timestamp() + _STEP_SECS
    (last,) = tf.while_loop(
      lambda now: now < until, lambda now: (tf.timestamp(),), (until - 1,)
    )
    ones = tf.ones_like(numbers) * tf.cast(last > 0, tf.int64)
    self.visits.scatter_add(tf.IndexedSlices(ones, numbers))
    with tf.GradientTape() as tape:
      first = numbers[0]
      loss = tf.gather(self.held, first) + tf.gather(self.there, first)
    gradients = tape.gradient(loss, [self.held, self.there])
    self.optimizer.apply(
      [tf.convert_to_tensor(gradient) for gradient in gradients],
      [self.held, self.there],
    )
    return {'first': tf.cast(first, tf.float32)}

  def arrays(self) -> dict[str, Any]:
    return {
      'visits': self.visits.numpy(),
      'held': -self.held.numpy(),
      'there': -self.there.numpy(),
      'iterations': int(self.optimizer.iterations),
    }


class Visitor(keras.Model):
  """Does a step."""

  def __init__(self, step: Callable[[tf.Tensor], Any]) -> None:
    super().__init__()
    self._step = step
    self.built = True

  def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
    return self._step(data)


def main(
  how: str, total: int, size: int, epochs: int, folder: pathlib.Path
) -> None:
  places = {'held': 'workers', 'there': 'ps'}
  strategy = tfps.replication.HybridStrategy(
    tfps.resolve_cluster(),
    choose=lambda description: places.get(description.name, 'workers'),
    timeout_secs=float(os.environ.get('TIMEOUT_SECS', 60)),
  )
  with strategy.scope():
    queue = tfps.input.SplitQueue(
      tfps.input.Ranges(total, size),
      epochs=epochs,
      visitation=os.environ.get('VISITATION', 'exactly_once'),
    )

  tell = small.teller(strategy, folder, _SLOW_SECS)

  at = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: tell(batch),
    on_epoch_end=lambda epoch, logs: print('epoch', epoch, flush=True),
  )
  if how == 'model':
    with strategy.scope():
      model = small.model('adam')
      model.optimizer.build(model.trainable_variables)
    if strategy.is_chief:
      small.initialize(model)
    strategy.wait_for_chief('weights', 60)
    model.fit(
      lambda context: (
        queue.dataset(context).map(small.example).batch(small.SIZE)
      ),
      epochs=epochs,
      callbacks=[at],
      verbose=0,
    )
    kept = {str(i): weight for i, weight in enumerate(model.get_weights())}
  else:
    with strategy.scope():
      shares = Shares(total)
    if 'STEPS' in os.environ:
      steps = int(os.environ['STEPS'])
      visit(how, strategy, shares, queue, 1, at, tell, steps)
      first = shares.arrays()
      strategy.barrier('first', 60)
    visit(how, strategy, shares, queue, epochs, at, tell)
    strategy.barrier('visited', 60)
    kept = shares.arrays()
    if 'STEPS' in os.environ:
      kept.update(first=first['iterations'], first_held=first['held'])
    kept['updates'] = strategy.updates_report().updates
  print(queue.report(), strategy.recovery_report(), flush=True)
  np.savez(folder / f'{strategy.task.index}.npz', **kept)
  strategy.barrier('end', 60)


def visit(
  how: str,
  strategy: Any,
  shares: Shares,
  queue: Any,
  epochs: int,
  at: Any,
  tell: Callable[[int], None],
  steps: int | None = None,
) -> None:
  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return queue.dataset(context).batch(BATCH)

  if how == 'train':
    result = strategy.train(
      shares.step,
      dataset,
      steps=steps,
      steps_per_execution=PER_EXECUTION,
      hooks=[lambda progress: tell(progress.step)],
    )
    print('step', result.step, flush=True)
    return
  with strategy.scope():
    model = Visitor(shares.step)
    model.compile(steps_per_execution=PER_EXECUTION)
  model.fit(
    dataset, epochs=epochs, steps_per_epoch=steps, callbacks=[at], verbose=0
  )


logging.set_verbosity(logging.INFO)
_how, *_numbers, _folder = sys.argv[1:]
_total, _size, _epochs = map(int, _numbers)
main(_how, _total, _size, _epochs, pathlib.Path(_folder))
