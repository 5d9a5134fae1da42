"""Workers of two hosts, which are one, that push by host.

Usage: by_host.py learn FOLDER, or by_host.py train STEPS

HOSTS in the environment has a digit for each worker: the name by which it is
known, of two names of this machine. With PLAIN each worker pushes for itself.

`learn` trains `small.model`, by each of `OPTIMIZERS`; worker 0 writes the
weights to FOLDER. `train` has gradients of 4 to the power of the worker's
index, and says after each step what they have made; and with CODEC a vector
whose gradients a codec sends one value at a time, keeping the rest.
"""

import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from tests.replication import small
import tfps

OPTIMIZERS = ('sgd', 'adam')
_NAMES = ('localhost', '127.0.0.1')
_STEPS = 6
_VECTOR = [4.0, 3.0, 2.0, 1.0]


def _cluster():
  config = json.loads(os.environ['TF_CONFIG'])
  workers = config['cluster']['worker']
  for i, name in enumerate(os.environ['HOSTS']):
    port = workers[i].rpartition(':')[2]
    workers[i] = f'{_NAMES[int(name)]}:{port}'
  return tfps.resolve_cluster({'TF_CONFIG': json.dumps(config)})


def _strategy(timeout_secs, **more):
  by_host = 'PLAIN' not in os.environ
  return tfps.BetweenGraphStrategy(
    _cluster(),
    updates=tfps.updates.Sync(timeout_secs=timeout_secs, by_host=by_host),
    **more,
  )


def _learn(folder):
  strategy = _strategy(60)
  for name in OPTIMIZERS:
    with strategy.scope():
      model = small.model(name)
    if strategy.is_chief:
      small.initialize(model)
    strategy.wait_for_chief('weights', 60)
    batches = small.dataset(strategy.input_context()).repeat()
    # In the first steps workers find each other.
    model.fit(batches.take(2), verbose=0)
    strategy.barrier('found', 60)
    before = strategy.wire_report()
    model.fit(batches.skip(2).take(_STEPS - 2), verbose=0)
    after = strategy.wire_report()
    pushed = sum(after.pushed) - sum(before.pushed)
    print('pushed', name, pushed // (_STEPS - 2), flush=True)
    strategy.barrier('learned', 60)
    if strategy.is_chief:
      np.savez(folder / f'{name}.npz', *model.get_weights())
      print('iterations', int(model.optimizer.iterations), flush=True)
  report = strategy.updates_report()
  print('updates', report.updates, report.late, report.short, flush=True)


def _train(steps):
  strategy = _strategy(2)
  with strategy.scope():
    number = tf.Variable(0.0, dtype=tf.float64, name='number')
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([number])

  def step(batch):
    optimizer.apply([batch], [number])

  def say(progress):
    print('at', progress.step, float(number.numpy()), flush=True)
    time.sleep(0.02)

  own = tf.constant(4.0**strategy.task.index, tf.float64)
  strategy.train(
    step,
    lambda context: tf.data.Dataset.from_tensors(own).repeat(),
    steps=steps,
    hooks=[say],
  )
  strategy.barrier('trained', 120)
  report = strategy.updates_report()
  print('updates', report.updates, report.late, report.short, flush=True)
  print('pushed', sum(strategy.wire_report().pushed), flush=True)


def main(what, argument):
  if what == 'train':
    _train(int(argument))
  else:
    _learn(pathlib.Path(argument))


main(*sys.argv[1:])
