"""What tests of losses count by, and how they have tasks lost."""

import re
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from tests import waiting


def counters(strategy):
  """On both ps, whole and in shards, of several types."""
  with strategy.scope():
    return [
      tf.Variable(0, dtype=tf.int64, trainable=False),
      tf.Variable(0.0),
      tf.Variable(tf.zeros([5, 2])),
      tf.Variable(tf.zeros([3], tf.float64)),
    ]


def add_one(variables):
  for variable in variables:
    variable.assign_add(tf.ones(variable.shape, variable.dtype))


def slow(secs, *after):
  """One, on the worker, that is there so long after other tensors."""
  with tf.control_dependencies(after):
    until = tf.timestamp() + secs
  (last,) = tf.while_loop(
    lambda now: now < until, lambda now: (tf.timestamp(),), (until - secs,)
  )
  return tf.cast(last > 0, tf.int64)


def add_one_slowly(variables, secs):
  """As training does: reads, computes, writes."""
  one = slow(secs, *[variable.read_value() for variable in variables])
  for variable in variables:
    variable.assign_add(one * tf.ones(variable.shape, tf.int64))


def ones(context):
  return tf.data.Dataset.from_tensors(1).repeat()


def count_to(coordinator, variables, steps, *hooks, per_execution=1):
  coordinator.train(
    lambda batch: add_one(variables),
    ones,
    steps=steps,
    steps_per_execution=per_execution,
    hooks=hooks,
  )


def values(variables):
  return {
    float(value) for v in variables for value in np.ravel(v.numpy()).tolist()
  }


class At:
  """A hook that does something in a thread once a step is reached."""

  def __init__(self, step, *actions):
    self._step = step
    self._actions = list(actions)
    self._thread = None

  def __call__(self, progress):
    if self._thread is None and progress.step >= self._step:
      self._thread = threading.Thread(target=self._act)
      self._thread.start()
    if progress.moment == 'end':
      assert self._thread is not None
      self._thread.join()

  def _act(self):
    for action in self._actions:
      action()


def lose(processes, *tasks):
  def act():
    for job, index in tasks:
      processes.kill(job, index)
    time.sleep(0.3)
    for job, index in tasks:
      processes.start(job, index)

  return act


def lose_within(processes, task, act):
  """Freezes a task, and loses it while something acts on it.

  Gives the errors by which that has failed.
  """
  failures = []

  def run():
    try:
      act()
    except tf.errors.OpError as error:
      failures.append(error)

  processes.freeze(*task)
  acting = threading.Thread(target=run)
  acting.start()
  acting.join(0.5)
  assert acting.is_alive()
  lose(processes, task)()
  acting.join(60)
  return failures


def fit(strategy, processes, lost, *, is_calm=lambda: True):
  """The history of a model that learns a line although ps are lost.

  Args:
    strategy: of the model.
    processes: with the ps.
    lost: by the epoch at whose beginning that is, the index of a ps.
    is_calm: whether all is mended, which is waited for before the next loss.
  """
  rng = np.random.default_rng(0)
  x = rng.normal(size=[2_000, 4]).astype(np.float32)
  y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), 'mse', steps_per_execution=10)

  def lose_when_calm(ps):
    waiting.until(is_calm, timeout_secs=60)
    lose(processes, ('ps', ps))()

  losing = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: (
      epoch in lost
      and threading.Thread(target=lose_when_calm, args=[lost[epoch]]).start()
    )
  )
  return model.fit(
    x, y, batch_size=20, epochs=10, callbacks=[losing], verbose=0
  )


def campaign(mode, folder, steps):
  """The program of a campaign, as a command."""
  return (
    *(sys.executable, '-m', 'tfps.testing.chaos.campaign_task'),
    *(f'--mode={mode}', f'--steps={steps}', f'--directory={folder}'),
  )


def counted(log):
  """What it says of its variables, least and most, and of the global step."""
  found = re.search(r'^count (\S+) (\S+) (\S+)', log, re.MULTILINE)
  return [float(number) for number in found.groups()]
