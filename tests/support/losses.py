"""Variables that count steps, and faults of tasks, for tests of recovery."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import re
import sys
import threading
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import sleeps
from tests.support import waiting
import tfps
from tfps.recovery import events as events_lib


def counters(strategy):
  """Zeros of several types on several ps, which may be cut into shards.

  A step of several replicas changes them once.
  """
  once = tf.VariableAggregation.ONLY_FIRST_REPLICA
  with strategy.scope():
    return [
      tf.Variable(value, trainable=name != 'count', aggregation=once, name=name)
      for name, value in (
        ('count', tf.zeros([], tf.int64)),
        ('number', 0.0),
        ('table', tf.zeros([5, 2])),
        ('vector', tf.zeros([3], tf.float64)),
      )
    ]


def add_one(variables):
  for variable in variables:
    variable.assign_add(tf.ones(variable.shape, variable.dtype))


def add_one_slowly(variables, secs):
  """As training does: reads, computes, writes."""
  one = sleeps.slow(secs, *[variable.read_value() for variable in variables])
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


class Events:
  """A listener for recovery events, which waits for some."""

  def __init__(self) -> None:
    self.all: list[events_lib.RecoveryEvent] = []

  def __call__(self, event: events_lib.RecoveryEvent) -> None:
    self.all.append(event)

  def of(self, kind: str, task: str = '') -> list[events_lib.RecoveryEvent]:
    """The events of a kind so far, of any task or of this one."""
    found = [event for event in self.all if event.kind == kind]
    return [event for event in found if not task or task in event.tasks]

  def count(self, kind: str, *tasks: str) -> list[int]:
    return [len(self.of(kind, task)) for task in tasks]

  def wait_for(self, kind: str, *tasks: str, after: list[int]) -> None:
    """Waits until all tasks have more events of a kind than before.

    Args:
      kind: of event.
      *tasks: by their names.
      after: what `count` had returned for them.
    """
    waiting.until(
      lambda: all(
        now > before
        for now, before in zip(self.count(kind, *tasks), after, strict=True)
      )
    )


@contextlib.contextmanager
def trainer(strategy) -> Iterator[Any]:
  """The object with `train` and `surviving`: a coordinator or the strategy."""
  if hasattr(strategy, 'train'):
    yield strategy
  else:
    with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
      yield coordinator
  strategy.close()


def train_while(
  trainer: Any,
  step_fn: Callable[[Any], object],
  story: Callable[[], object],
  *,
  steps: int = 0,
  per_round: int = 100,
  per_execution: int = 2,
  dataset_fn: Any = ones,
  hook: Callable[[Any], object] = lambda progress: None,
) -> int:
  """Trains for as long as a function runs in another thread.

  Args:
    trainer: has `train`.
    step_fn: for `train`.
    story: what happens meanwhile; its error is raised.
    steps: the global step so far.
    per_round: how many steps each call of a coordinator's `train` does.
    per_execution: how many of them are one execution.
    dataset_fn: for `train`.
    hook: called with the progress.

  Returns:
    The global step.
  """
  with futures.ThreadPoolExecutor(1) as pool:
    happening = None

    def begin(progress):
      nonlocal happening
      # Training goes on already when it begins.
      if happening is None and progress.moment == 'step':
        happening = pool.submit(story)

    while happening is None or not happening.done():
      steps += per_round
      trainer.train(
        step_fn,
        dataset_fn,
        steps=steps,
        steps_per_execution=per_execution,
        hooks=[hook, begin],
      )
    happening.result()
  return int(trainer.global_step)


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


def fit(strategy, processes, lost, *, epochs=6, is_calm=lambda: True):
  """The history of a model that learns a line although ps are lost.

  Args:
    strategy: of the model.
    processes: with the ps.
    lost: by the epoch at whose beginning that is, the index of a ps.
    epochs: how many there are.
    is_calm: whether all is mended, which is waited for before the next loss.
  """
  rng = np.random.default_rng(0)
  x = rng.normal(size=[1_000, 4]).astype(np.float32)
  y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), 'mse', steps_per_execution=2)

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
    x, y, batch_size=20, epochs=epochs, callbacks=[losing], verbose=0
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
