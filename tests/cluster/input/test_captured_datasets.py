"""Datasets made outside of the function that makes the workers' datasets."""

import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import input as input_lib

_STRATEGIES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
  'in graph': tfps.replication.InGraphStrategy,
}
_TOTAL, _BATCH = 20, 5


def _numbers():
  """Returns a dataset of all numbers that reads a table and a variable."""
  keys = tf.range(_TOTAL, dtype=tf.int64)
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(keys, keys - 1), -1
  )
  one = tf.Variable(1, dtype=tf.int64)
  return tf.data.Dataset.range(_TOTAL).map(lambda key: table.lookup(key) + one)


def _alone(strategy, numbers):
  del strategy
  shuffled = numbers.cache().shuffle(_TOTAL)
  return lambda context: shuffled.repeat().batch(_BATCH)


def _by_splits(strategy, numbers):
  with strategy.scope():
    queue = input_lib.SplitQueue(input_lib.Ranges(_TOTAL, _BATCH), epochs=2)

  def one_by_one(i):
    return numbers.skip(i).take(1)

  return lambda context: (
    queue.dataset(context).flat_map(one_by_one).batch(_BATCH)
  )


@pytest.mark.parametrize(
  ('mode', 'use'),
  turns.rarely(
    [(mode, use) for mode in _STRATEGIES for use in (_alone, _by_splits)],
    but=[('coordinator', _alone)],
  ),
)
@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_they_have_their_values_on_workers(tfps_cluster, mode, use):
  strategy = _STRATEGIES[mode](tfps_cluster.cluster)
  with strategy.scope():
    visits = tf.Variable(tf.zeros([_TOTAL], tf.int64), trainable=False)

  def step(numbers):
    visits.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
    return {}

  dataset_fn = use(strategy, _numbers())
  steps = 2 * _TOTAL // _BATCH
  if hasattr(strategy, 'train'):
    strategy.train(step, dataset_fn, steps=steps)
  else:
    with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
      coordinator.train(step, dataset_fn, steps=steps)
  assert visits.numpy().tolist() == [2] * _TOTAL


@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_a_dataset_of_python_code_is_refused(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  generated = _generated()
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    with pytest.raises(ValueError, match='outside of it, which executes Py'):
      coordinator.create_per_worker_dataset(lambda: generated.batch(1))
    coordinator.create_per_worker_dataset(lambda: _generated().batch(1))


def _generated():
  return tf.data.Dataset.from_generator(
    lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64)
  )
