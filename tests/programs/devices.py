"""Workers with two devices each, between graphs.

Usage: devices.py alone FOLDER: one worker, with a ps in its process. It writes
what it has computed to `found.json`, and the weights of a model to
`weights.npz`.

devices.py together FOLDER: a worker of several that make one update of their
steps, each on batches of its own; then they train `small.model`, of which the
chief writes the weights.
"""

import json
import pathlib
import sys

import keras
from keras import layers
import numpy as np
import tensorflow as tf

from tests.support import alone as alone_lib
from tests.support import small
import tfps

SIZE = 1000
STEPS = 10
ROWS = 2 * 7 + 1  # in batches of 7, of which no piece is like the other
_RNG = np.random.default_rng(0)
X = _RNG.integers(0, 12, (ROWS, 3))
Y = _RNG.random((ROWS, 1), dtype='f')
QUEUED = 12


def make_model():
  return alone_lib.make_model(
    keras.optimizers.SGD(0.05, 0.9),
    lambda: [layers.Dropout(0.0), layers.Dense(1, 'tanh')],
    metrics=['mae'],
    steps_per_execution=2,
  )


class Slopes:
  """Adds, to all of a variable, minus the mean of what batches hold."""

  def __init__(self, strategy, name):
    self._strategy = strategy
    with strategy.scope():
      self.number = tf.Variable(tf.zeros([SIZE], tf.float64), name=name)
      self.optimizer = keras.optimizers.SGD(1.0)
      self.optimizer.build([self.number])
    self.devices = set()

  def step(self, batch):
    self.devices.add(tf.raw_ops.NoOp().device)
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(self.number * batch)
      loss /= self._strategy.num_replicas_in_sync
    self.optimizer.apply([tape.gradient(loss, self.number)], [self.number])
    return {'batch': batch}

  @property
  def found(self):
    (value,) = set(self.number.numpy())
    return value


def count(context):
  """Batches 0, 1, ..., from 100 on for the next worker, and so on."""
  assert context.num_replicas_in_sync == 2
  assert context.get_per_replica_batch_size(8) == 4
  first = tf.constant(100.0 * context.input_pipeline_id, tf.float64)
  dataset = tf.data.Dataset.counter()
  return dataset.map(lambda i: first + tf.cast(i, tf.float64))


def _in_shards(shape, dtype, **kwargs):
  """Cuts matrices in two."""
  del dtype, kwargs
  return [2, 1] if len(shape) == 2 else [1] * len(shape)


def _alone(folder):
  strategy = tfps.BetweenGraphStrategy(
    tfps.Cluster.local(),
    _in_shards,
    recovery=tfps.Recovery(folder / 'cuts', every_secs=3600),
  )
  found = {'replicas': strategy.num_replicas_in_sync}
  for name, work in (
    ('train', _train),
    ('own loop', _loop),
    ('repaired', _repair),
    ('fit', _fit),
    ('queue', _queue),
  ):
    found[name] = work(strategy, folder)
  bounded = tfps.updates.BoundedStaleness(1)
  found['bounded'] = _train(
    tfps.BetweenGraphStrategy(tfps.Cluster.local(), updates=bounded), folder
  )
  (folder / 'found.json').write_text(json.dumps(found))


def _train(strategy, folder):
  del folder
  slopes = Slopes(strategy, 'train')
  result = strategy.train(
    slopes.step,
    count,
    steps=STEPS,
    steps_per_execution=5,
    log_every_secs=1000,  # or it would be the mean since the last line
  )
  strategy.barrier('trained', 100)
  report = strategy.wire_report()
  return {
    'number': slopes.found,
    'step': result.step,
    'iterations': int(slopes.optimizer.iterations),
    'batch': result.metrics['batch'],
    'devices': sorted(slopes.devices),
    'pulled': sum(report.pulled) / STEPS,
    'pushed': sum(report.pushed) / STEPS,
  }


def _loop(strategy, folder):
  """Divides batches of 4, and of 2, whose numbers are their places."""
  del folder
  slopes = Slopes(strategy, 'loop')
  numbers = tf.data.Dataset.range(6).map(lambda i: tf.cast(i, tf.float64))
  whole = iter(strategy.experimental_distribute_dataset(numbers.batch(4)))
  parts = iter(strategy.distribute_datasets_from_function(count))

  @tf.function
  def step(batch):
    def own(batch):
      return slopes.step(tf.reduce_mean(batch))['batch']

    means = strategy.run(own, args=(batch,))
    return strategy.reduce('sum', means, axis=None)

  sums = [
    float(strategy.surviving(lambda batch=batch: step(batch)))
    for batch in (next(whole), next(whole), next(parts), next(parts))
  ]

  @tf.function
  def without_replicas():
    slopes.optimizer.apply([tf.ones([SIZE], tf.float64)], [slopes.number])

  without_replicas()
  strategy.global_step.assign_add(1)
  return {'sums': sums, 'number': slopes.found}


def _repair(strategy, folder):
  """Goes on after a ps has lost a variable of which there is a snapshot."""
  del folder
  slopes = Slopes(strategy, 'repair')
  before = int(strategy.global_step)
  strategy.train(slopes.step, count, steps=before + 3)
  tf.raw_ops.DestroyResourceOp(resource=slopes.number.handle)
  batch = tf.constant(1000.0, tf.float64)
  strategy.surviving(
    tf.function(lambda: strategy.run(slopes.step, args=(batch,)))
  )
  return {'number': slopes.found}


def _fit(strategy, folder):
  with strategy.scope():
    model = make_model()
  history = model.fit(X, Y, 7, epochs=2, shuffle=False, verbose=0)
  np.savez(folder / 'weights.npz', *model.get_weights())
  return {
    'history': history.history,
    'iterations': int(model.optimizer.iterations),
    'evaluated': model.evaluate(X, Y, batch_size=7, verbose=0),
    'predicted': model.predict(X, batch_size=7, verbose=0).tolist(),
  }


def _queue(strategy, folder):
  """Trains on what a queue shares out, of which each replica has batches."""
  with strategy.scope():
    model = make_model()
    queue = tfps.input.SplitQueue(tfps.input.Ranges(QUEUED, QUEUED // 2))

  def dataset_fn(context):
    size = context.get_per_replica_batch_size(4)
    numbers = queue.dataset(context).batch(size)
    return numbers.map(lambda i: (tf.gather(X, i), tf.gather(Y, i)))

  history = model.fit(dataset_fn, verbose=0)
  np.savez(folder / 'queue.npz', *model.get_weights())
  return {'history': history.history}


def _together(folder):
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(), updates=tfps.updates.Sync()
  )
  with strategy.scope():
    model = small.model('adam')
  if strategy.is_chief:
    small.initialize(model)
  strategy.barrier('made', 100)
  found = _train(strategy, folder)
  model.fit(small.dataset(strategy.input_context()).take(STEPS // 2), verbose=0)
  strategy.barrier('fitted', 100)
  found['fitted'] = int(model.optimizer.iterations)
  if strategy.is_chief:
    np.savez(folder / 'weights.npz', *model.get_weights())
  name = f'worker-{strategy.task.index}.json'
  (folder / name).write_text(json.dumps(found))


def main(what, folder):
  (cpu,) = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
  )
  {'alone': _alone, 'together': _together}[what](pathlib.Path(folder))


if __name__ == '__main__':
  main(*sys.argv[1:])
