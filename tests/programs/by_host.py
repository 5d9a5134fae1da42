"""Workers of two hosts, which are one, that push by host.

Usage: by_host.py learn FOLDER, by_host.py train, or by_host.py count

HOSTS in the environment has a digit for each worker: the name by which it is
known, of two names of this machine.

`learn` trains `small.model`, by each of `OPTIMIZERS`; worker 0 writes the
weights to FOLDER. `train` has a gradient of 4 to the power of the worker's
index, and one that is `_VECTOR`, of which a codec sends one value at a time and
keeps the rest. It goes on until it is killed, and says what all have made.
`count` says how many bytes of a step the host's interface sends and receives.
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
COUNTED = 100_000
_VECTOR = [4.0, 3.0, 2.0, 1.0]


def _cluster():
  config = json.loads(os.environ['TF_CONFIG'])
  workers = config['cluster']['worker']
  for i, name in enumerate(os.environ.get('HOSTS', '')):
    port = workers[i].rpartition(':')[2]
    workers[i] = f'{_NAMES[int(name)]}:{port}'
  return tfps.resolve_cluster({'TF_CONFIG': json.dumps(config)})


def _strategy(timeout_secs, **more):
  return tfps.BetweenGraphStrategy(
    _cluster(),
    updates=tfps.updates.Sync(timeout_secs=timeout_secs, by_host=True),
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
    pushed = []
    model.fit(
      small.dataset(strategy.input_context()).take(_STEPS),
      verbose=0,
      callbacks=[
        keras.callbacks.LambdaCallback(
          on_train_batch_end=lambda batch, logs, pushed=pushed: pushed.append(
            sum(strategy.wire_report().pushed)
          )
        )
      ],
    )
    # In the first two steps workers find each other.
    print('pushed', name, pushed[-1] - pushed[0], flush=True)
    strategy.barrier('learned', 60)
    if strategy.is_chief:
      np.savez(folder / f'{name}.npz', *model.get_weights())
      print('iterations', int(model.optimizer.iterations), flush=True)
  report = strategy.updates_report()
  print('updates', report.updates, report.late, report.short, flush=True)


def _train():
  codec = tfps.codecs.ErrorFeedback(tfps.codecs.TopK(0.25))
  strategy = _strategy(2, wire=tfps.Wire(push=codec))
  with strategy.scope():
    number = tf.Variable(0.0, dtype=tf.float64, name='number')
    vector = tf.Variable(tf.zeros([4]), name='vector')
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([number, vector])

  def step(batch):
    optimizer.apply([batch, tf.constant(_VECTOR)], [number, vector])

  def say(progress):
    print('at', float(number.numpy()), *vector.numpy(), flush=True)
    time.sleep(0.02)

  own = tf.constant(4.0**strategy.task.index, tf.float64)
  strategy.train(
    step,
    lambda context: tf.data.Dataset.from_tensors(own).repeat(),
    steps=1_000_000,
    hooks=[say],
  )


def _count():
  strategy = _strategy(60)
  with strategy.scope():
    variable = tf.Variable(tf.zeros([COUNTED]), name='variable')
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([variable])

  def step(batch):
    optimizer.apply([variable * batch], [variable])

  def train(steps):
    strategy.train(
      step,
      lambda context: tf.data.Dataset.from_tensors(1.0).repeat(),
      steps=steps,
      steps_per_execution=5,
    )
    strategy.barrier('trained', 60)
    return _interface()

  before = train(10)
  found = train(60) - before
  if strategy.is_chief:
    print('sent and received', *(found // 50), flush=True)


def _interface():
  """The bytes that the host's interface has sent, and received."""
  table = pathlib.Path('/proc/net/dev').read_text()
  (line,) = (line for line in table.splitlines() if 'eth0:' in line)
  counters = line.partition(':')[2].split()
  return np.array([int(counters[8]), int(counters[0])])


def main(what, *folder):
  if what == 'learn':
    _learn(pathlib.Path(*folder))
  else:
    {'train': _train, 'count': _count}[what]()


if __name__ == '__main__':
  main(*sys.argv[1:])
