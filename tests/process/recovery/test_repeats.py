"""Of what a loss cuts short, one step at most is applied twice."""

import functools
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import sleeps
from tests.support import waiting
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2, processes=True)

_STEP_SECS = 0.02
_PER_EXECUTION = 8


def _strategy(processes, directory, replicas, events):
  return tfps.ParameterServerStrategy(
    processes.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(
      directory, every_secs=3600, replicas=replicas, on_event=events.append
    ),
  )


def _while_losing(processes, tasks, events):
  """Goes on until tasks have been lost, each once the one before is back."""

  def times_back(task):
    return sum(e.kind == 'back' and task in e.tasks for e in events)

  def is_back(task, before):
    return times_back(task) > before

  def lose():
    for job, index in tasks:
      before = times_back(f'{job}:{index}')
      losses.lose(processes, (job, index))()
      waiting.until(functools.partial(is_back, f'{job}:{index}', before))
      time.sleep(0.5)  # so that it is at work when the next one is lost

  story = threading.Thread(target=lose)
  yield
  story.start()
  while story.is_alive():
    yield
  story.join()


LOSSES = {
  # Of each worker that is lost, one execution is cut short.
  'workers': (0, [('worker', 0), ('worker', 1)], 1),
  # Of each ps, those of both workers.
  'ps with replicas': (1, [('ps', 1), ('ps', 0)], 2),
}


@pytest.mark.parametrize(
  'loss',
  ['workers', pytest.param('ps with replicas', marks=pytest.mark.exhaustive)],
)
def test_train_repeats_one_step_at_most(processes, tmp_path, loss):
  replicas, tasks, cut_short = LOSSES[loss]
  events = []
  strategy = _strategy(processes, tmp_path, replicas, events)
  with strategy.scope():
    count = tf.Variable(tf.zeros([2], tf.int64), trainable=False)
    # Needs nothing from the worker, and could be done in advance.
    other = tf.Variable(0, dtype=tf.int64, trainable=False)

  def step(batch):
    losses.add_one_slowly(count.variables, _STEP_SECS)
    other.assign_add(1)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    steps = 0
    for _ in _while_losing(processes, tasks, events):
      steps += 80
      result = coordinator.train(
        step, losses.ones, steps=steps, steps_per_execution=_PER_EXECUTION
      )
      assert result.step == steps
    assert coordinator.global_step.numpy() == steps
    doubled = np.append(count.numpy(), other.numpy()) - steps
  report = strategy.recovery_report()
  assert min(doubled) >= 0
  assert max(doubled) <= report.steps_repeated <= cut_short * len(tasks)
  assert report.steps_repeated == sum(e.steps or 0 for e in events)
  assert report.workers_lost == sum(e.kind == 'lost' for e in events)


@pytest.mark.exhaustive
def test_fit_tells_what_it_repeats(processes, tmp_path):
  events = []
  strategy = _strategy(processes, tmp_path, 0, events)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input([1]), _Slow()])
    model.compile(
      keras.optimizers.SGD(0.01), 'mse', steps_per_execution=_PER_EXECUTION
    )
  x = np.ones([20 * _PER_EXECUTION, 1], 'f')
  steps = 0
  for _ in _while_losing(processes, [('worker', 0), ('worker', 1)], events):
    model.fit(x, x, batch_size=1, verbose=0)
    steps += len(x)
  doubled = int(model.optimizer.iterations.numpy()) - steps
  report = strategy.recovery_report()
  strategy.close()
  # All steps of an execution are done again, of which some count.
  assert 0 < doubled <= report.steps_repeated <= 2 * _PER_EXECUTION
  assert report.workers_lost >= 2


class _Slow(keras.layers.Dense):
  def __init__(self):
    super().__init__(1)

  def call(self, inputs):
    outputs = super().call(inputs)
    return outputs * tf.cast(sleeps.slow(_STEP_SECS, outputs), outputs.dtype)
