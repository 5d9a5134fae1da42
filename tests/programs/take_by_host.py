"""Workers of one host take batches from queues, and push by host.

Usage: take_by_host.py FOLDER

First in `train`, then in a `fit` of some epochs. Of `train`, and of all epochs
but the last, a worker says how often each number was visited, what has become
of updates, and how many bytes it has pushed. The last epoch begins once
FOLDER/go is there, and is slow, so that workers can be killed meanwhile. Of
each batch a worker says the first number.
"""

from collections.abc import Callable
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from tests import waiting
from tests.input import shares as shares_lib
import tfps

BATCH, PER_EXECUTION, EPOCHS = 5, 4, 4
# How many numbers there are, and how many in a split. The last one is short.
TRAINED, FITTED = (730, 100), (470, 200)
TIMEOUT_SECS = 5


class _Model(keras.Model):
  def __init__(self, step: Callable[[tf.Tensor], None]) -> None:
    super().__init__()
    self.train_step = lambda numbers: step(numbers) or {}
    self.built = True


class _Taking:
  """What batches of one queue are trained on."""

  def __init__(self, strategy, total, split, *, epochs=1):
    self.step_secs = 0.005 * strategy.task.index
    self._strategy = strategy
    self._shares = shares_lib.Shares(strategy, total)
    self._before = sum(strategy.wire_report().pushed)
    with strategy.scope():
      self._queue = tfps.input.SplitQueue(
        tfps.input.Ranges(total, split),
        epochs=epochs,
        visitation='exactly_once',
      )

  def step(self, numbers):
    zero = tf.numpy_function(self._sleep, [numbers[0]], tf.int64)
    self._shares.step(numbers + tf.ensure_shape(zero, []))

  def _sleep(self, first):
    print('on', first, flush=True)
    time.sleep(self.step_secs)
    return np.int64(0)

  def dataset(self, context):
    return self._queue.dataset(context).batch(BATCH)

  def say(self):
    pushed = sum(self._strategy.wire_report().pushed) - self._before
    visits = self._shares.visits.numpy()
    shares = self._shares.numpy().sum()
    updates = int(self._shares.optimizer.iterations)
    late = self._strategy.updates_report().late
    print('visits', visits.min(), visits.max(), visits.sum())
    print('updates', updates, shares, late)
    print('pushed', pushed)
    print(self._queue.report(), flush=True)


def main(folder: pathlib.Path) -> None:
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(),
    updates=tfps.updates.Sync(timeout_secs=TIMEOUT_SECS, by_host=True),
  )
  trained = _Taking(strategy, *TRAINED)
  strategy.train(
    trained.step, trained.dataset, steps_per_execution=PER_EXECUTION
  )
  trained.say()

  fitted = _Taking(strategy, *FITTED, epochs=EPOCHS)

  def begin(epoch, logs):
    if epoch == EPOCHS - 1:
      strategy.barrier('last', 60)
      fitted.say()
      print('ready', flush=True)
      waiting.until((folder / 'go').exists, timeout_secs=120)
      fitted.step_secs = 0.05

  with strategy.scope():
    model = _Model(fitted.step)
    model.compile(steps_per_execution=PER_EXECUTION)
  model.fit(
    fitted.dataset,
    epochs=EPOCHS,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=begin)],
    verbose=0,
  )
  fitted.say()


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
