"""One graph cannot go on without one of its tasks, and says which it lacks."""

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.strategies import InGraphStrategy

pytestmark = [
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_an_epoch_is_gone_on_with_after_a_worker_was_killed(
  tfps_cluster, tmp_path
):
  total, size, batch = 300, 50, 5

  def train(*hooks):
    strategy = InGraphStrategy(tfps_cluster.cluster, timeout_secs=4)
    with strategy.scope():
      visits = tf.Variable(tf.zeros([total], tf.int64), trainable=False)
      queue = tfps.input.SplitQueue(
        tfps.input.Ranges(total, size), visitation='exactly_once'
      )

    def step(numbers):
      visits.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))

    result = strategy.train(
      step,
      lambda context: queue.dataset(context).batch(batch),
      steps_per_execution=2,
      checkpoint=tf.train.Checkpoint(visits=visits),
      checkpoint_dir=tmp_path,
      checkpoint_every_steps=4,
      hooks=hooks,
    )
    return result, visits.numpy()

  def kill(progress):
    if progress.step == 22:
      tfps_cluster.kill('worker', 1)

  with pytest.raises(tfps.errors.UnreachableError, match='worker:1'):
    train(kill)
  tfps_cluster.start('worker', 1)
  result, counts = train()
  np.testing.assert_array_equal(counts, 1)
  assert result.step - result.steps == 20
  assert result.step >= total / batch / 2
