"""Devices of the workers that have a replica of each step."""

import pytest
import tensorflow as tf

import tfps
from tfps._compat import replicas
from tfps.variables import step_replicas


def _names(*numbers, kind='CPU'):
  return [
    f'/job:worker/replica:0/task:{task}/device:{kind}:{i}'
    for task, number in enumerate(numbers)
    for i in range(number)
  ]


def test_gpus_are_the_replicas_where_there_are_some():
  names = [
    '/job:chief/replica:0/task:0/device:GPU:0',
    *_names(1, 1),
    *_names(2, 2, kind='GPU'),
    '/job:ps/replica:0/task:0/device:CPU:0',
  ]
  found = step_replicas.find(names, span_workers=False)
  assert found.devices == ('/device:GPU:0', '/device:GPU:1')
  found = step_replicas.find(names, span_workers=True)
  assert found.devices == tuple(_names(2, 2, kind='GPU'))
  assert found.per_worker == 2


def test_between_graphs_a_worker_has_the_replicas_of_its_own_devices():
  names = [*_names(1, 1), *_names(3, 2, kind='GPU')]
  found = step_replicas.of_task(names, tfps.Task('worker', 1))
  assert found.devices == ('/device:GPU:0', '/device:GPU:1')
  assert found.per_worker == 2
  found = step_replicas.of_task(_names(1, 2), tfps.Task('worker', 1))
  assert found.devices == ('/device:CPU:0', '/device:CPU:1')


def test_workers_have_equally_many_devices():
  with pytest.raises(ValueError, match='worker:0 has 2, worker:1 has 1'):
    step_replicas.find(_names(2, 1), span_workers=False)


@pytest.mark.parametrize(
  ('batch', 'number'),
  [
    pytest.param(lambda: tf.zeros([3, 2]), 3, id='a tensor'),
    pytest.param(lambda: (tf.zeros([4]), tf.zeros([4, 1])), 4, id='a pair'),
    pytest.param(lambda: tf.constant(1.0), 1, id='a scalar'),
    pytest.param(lambda: tf.ragged.constant([[1], [2, 3]]), 2, id='ragged'),
    pytest.param(lambda: tf.sparse.eye(5), 5, id='sparse'),
    pytest.param(lambda: (), 0, id='nothing'),
    pytest.param(
      lambda: replicas.Batches([tf.zeros([3, 2]), tf.zeros([1, 2])]),
      4,
      id='of two replicas',
    ),
  ],
)
def test_examples_of_a_batch_are_counted(batch, number):
  assert int(step_replicas.num_examples(batch())) == number


def test_examples_of_batches_of_any_size_are_counted():
  @tf.function(input_signature=[tf.TensorSpec([None, 2])])
  def count(batch):
    return step_replicas.num_examples(batch)

  assert [int(count(tf.zeros([n, 2]))) for n in (0, 7)] == [0, 7]
