"""One graph cannot go on without one of its tasks, and says which it lacks."""

import threading
import time

import keras
import pytest
import tensorflow as tf

import tfps
from tfps.replication import InGraphStrategy

pytestmark = [
  pytest.mark.slow,
  pytest.mark.tfps_cluster(workers=2, ps=1, processes=True),
]


def _train(strategy, steps, hook):
  with strategy.scope():
    number = tf.Variable(0.0, name='number')
    optimizer = keras.optimizers.SGD(1.0)

  def step(batch):
    with tf.GradientTape() as tape:
      loss = number * batch
    optimizer.apply([tape.gradient(loss, number)], [number])

  def dataset_fn(context):
    del context
    return tf.data.Dataset.from_tensors(1.0).repeat()

  strategy.train(step, dataset_fn, steps=steps, hooks=[hook])
  return float(number.numpy())


@pytest.mark.parametrize(
  ('fault', 'task', 'error', 'said'),
  [
    ('kill', ('worker', 1), tfps.errors.UnreachableError, 'is unreachable'),
    ('kill', ('ps', 0), tfps.errors.UnreachableError, 'is unreachable'),
    ('freeze', ('worker', 1), tfps.errors.DeadlineError, 'does not answer'),
  ],
  ids=['killed worker', 'killed ps', 'frozen worker'],
)
def test_a_lost_task_is_named(tfps_cluster, fault, task, error, said):
  strategy = InGraphStrategy(tfps_cluster.cluster, timeout_secs=4)

  def hook(progress):
    if progress.step == 20:
      threading.Timer(0.2, getattr(tfps_cluster, fault), task).start()

  begun = time.monotonic()
  with pytest.raises(error, match=f'{task[0]}:{task[1]} at .* {said}'):
    _train(strategy, 1_000_000, hook)
  assert time.monotonic() - begun < 60


def test_training_begins_anew_once_the_worker_is_back(tfps_cluster):
  strategy = InGraphStrategy(tfps_cluster.cluster, timeout_secs=4)
  assert _train(strategy, 10, lambda progress: None) == -10.0
