"""Visits numbers of queues with a hybrid, and keeps what has come of it.

Usage: hybrid_visit.py FOLDER CASE...

The cases are those of `visits.CASES`, one after another. Of each, a worker
writes what it has to FOLDER, as CASE-INDEX.npz. One that is started again does
not repeat cases of which it has done so.

From the environment: TIMEOUT_SECS is the strategy's, and SLOW the number of the
worker that takes its time in slow cases, until there is a file FOLDER/go.
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

from tests.support import small
from tests.support import visits
import tfps

_SLOW_SECS = 1.0


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
    self.visits.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
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


class Visit:
  """A case, with the variables that it takes.

  To be made before any case is run: so workers that are started again have the
  same variables as the others.
  """

  def __init__(
    self,
    strategy: Any,
    name: str,
    tell: Callable[[int], None],
  ) -> None:
    self._strategy = strategy
    self._name = name
    self._case = case = visits.CASES[name]
    self._tell = tell if case.is_slow else lambda step: None
    with strategy.scope():
      self._queue = tfps.input.SplitQueue(
        tfps.input.Ranges(case.total, case.size),
        epochs=case.epochs,
        visitation=case.visitation,
      )
      if case.how == 'model':
        self._model: Any = small.model('adam')
        self._model.optimizer.build(self._model.trainable_variables)
      else:
        self._shares = Shares(case.total)
        self._model = Visitor(self._shares.step)
        self._model.compile(steps_per_execution=visits.PER_EXECUTION)

  def run(self) -> dict[str, Any]:
    """What has come of it."""
    if self._case.how == 'model':
      return self._run_model()
    before = self._strategy.updates_report().updates
    kept: dict[str, Any] = {}
    if self._case.steps is not None:
      self._visit(1, self._case.steps)
      first = self._shares.arrays()
      self._strategy.barrier(f'{self._name}: first', 60)
      kept.update(first=first['iterations'], first_held=first['held'])
    self._visit(self._case.epochs)
    self._strategy.barrier(f'{self._name}: visited', 60)
    if not self._case.is_slow:  # else who comes back has not seen all
      updates = self._strategy.updates_report().updates
      kept['updates'] = updates - before
    return {**kept, **self._shares.arrays()}

  def _run_model(self) -> dict[str, Any]:
    if self._strategy.is_chief:
      small.initialize(self._model)
    self._strategy.wait_for_chief(f'{self._name}: weights', 60)
    self._fit(
      lambda context: (
        self._queue.dataset(context).map(small.example).batch(small.SIZE)
      ),
      self._case.epochs,
    )
    weights = self._model.get_weights()
    return {str(i): weight for i, weight in enumerate(weights)}

  def _visit(self, epochs: int, steps: int | None = None) -> None:
    if self._case.how == 'fit':
      self._fit(self._dataset, epochs, steps)
      return
    self._strategy.train(
      self._shares.step,
      self._dataset,
      steps=steps and steps + int(self._strategy.global_step),
      steps_per_execution=visits.PER_EXECUTION,
      hooks=[lambda progress: self._tell(progress.step)],
    )

  def _dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    return self._queue.dataset(context).batch(visits.BATCH)

  def _fit(self, dataset: Any, epochs: int, steps: int | None = None) -> None:
    callback = keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: self._tell(batch)
    )
    self._model.fit(
      dataset,
      epochs=epochs,
      steps_per_epoch=steps,
      callbacks=[callback],
      verbose=0,
    )


def main(folder: pathlib.Path, *names: str) -> None:
  places = {'held': 'workers', 'there': 'ps'}
  strategy = tfps.replication.HybridStrategy(
    tfps.resolve_cluster(),
    choose=lambda description: places.get(description.name, 'workers'),
    timeout_secs=float(os.environ.get('TIMEOUT_SECS', 60)),
  )
  tell = small.teller(strategy, folder, _SLOW_SECS)
  cases = {name: Visit(strategy, name, tell) for name in names}
  for name, visit in cases.items():
    path = folder / f'{name}-{strategy.task.index}.npz'
    if path.exists():
      continue
    print('case', name, flush=True)
    kept = visit.run()
    np.savez(path, **kept)
    strategy.barrier(f'{name}: end', 60)
  print(strategy.recovery_report(), flush=True)


logging.set_verbosity(logging.INFO)
main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
