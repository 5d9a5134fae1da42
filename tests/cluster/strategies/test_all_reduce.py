"""AllReduceStrategy: a single worker, parts of batches, and what it refuses."""

import gc
import os
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import small
from tests.support import turns
import tfps
from tfps.input import queue as queue_lib
from tfps.keras import batch_structures


@pytest.fixture
def strategy():
  return tfps.AllReduceStrategy(tfps.Cluster.local())


def _assert_like_one_process(model, optimizer, steps):
  wanted = small.alone(optimizer, steps, 1)
  for found, value in zip(model.get_weights(), wanted, strict=True):
    np.testing.assert_allclose(found, value, atol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize(
  'optimizer', turns.rarely(['sgd', 'adamw'], but=['adamw'])
)
def test_fit_of_one_worker_is_that_of_a_single_process(strategy, optimizer):
  with strategy.scope():
    model = small.model(optimizer)
  small.initialize(model)
  model.fit(small.whole(1), steps_per_epoch=6, verbose=0)
  _assert_like_one_process(model, optimizer, 6)
  assert int(model.optimizer.iterations) == 6


def test_train_of_one_worker_resumes_from_its_checkpoint(strategy, tmp_path):
  with strategy.scope():
    model = small.model('adam')
  small.initialize(model)
  for steps in (4, 10):
    result = strategy.train(
      small.step_of(model),
      lambda context: small.dataset(context).repeat(),
      steps=steps,
      checkpoint=tf.train.Checkpoint(model=model),
      checkpoint_dir=tmp_path,
    )
  assert (result.step, result.steps) == (10, 6)
  assert int(strategy.global_step) == 10


def test_a_loop_of_ones_own_counts_its_steps(strategy):
  with strategy.scope():
    model = small.model('sgd')
  step = small.step_of(model)
  run = tf.function(lambda batch: strategy.run(step, args=(batch,)))
  losses = [
    float(strategy.surviving(lambda batch=batch: run(batch))['loss'])
    for batch in small.whole(1).take(5)
  ]
  assert losses[-1] != losses[0]
  assert int(strategy.num_steps) == 5
  total = strategy.reduce(tf.distribute.ReduceOp.SUM, tf.constant(3.0), None)
  assert float(total) == 3.0
  assert strategy.num_replicas_in_sync == 1


def test_values_are_reduced_as_by_tensorflow(strategy):
  def replica():
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, [1.0, 2])

  assert [float(value) for value in strategy.run(replica)] == [1.0, 2.0]


def test_graphs_of_functions_that_are_gone_are_freed(strategy):
  with strategy.scope():
    variable = tf.Variable(0.0)

  def add_up(value):  # TensorFlow's own method keeps graphs by itself
    return strategy.all_reduce(tf.distribute.ReduceOp.SUM, value)

  @tf.function
  def step():
    strategy.run(lambda: variable.assign_add(add_up(1.0)))

  step()
  graph = weakref.ref(step.get_concrete_function().graph)
  del step
  gc.collect()
  assert graph() is None


@pytest.mark.quick
@pytest.mark.parametrize(
  ('number', 'size', 'parts', 'weights', 'counts'),
  [
    (6, 2, [[0, 1, 2], [3, 4, 5]], [1, 1], [1, 1]),
    (5, 2, [[0, 1], [2, 3, 4]], [0.8, 1.2], [1, 1]),
    (2, 2, [[0], [1]], [1, 1], [1, 1]),
    (2, 3, [[0, 1]] * 3, [1, 1, 1], [1, 0, 0]),
  ],
)
def test_batches_are_divided(number, size, parts, weights, counts):
  x = np.arange(number)
  found = [
    batch_structures.part((x, tf.constant(2 * x)), i, size) for i in range(size)
  ]
  assert [each.batch[0].numpy().tolist() for each in found] == parts
  assert [each.batch[1].numpy().tolist() for each in found] == [
    [2 * i for i in part] for part in parts
  ]
  np.testing.assert_allclose([each.weight for each in found], weights)
  assert [float(each.counts) for each in found] == counts


def test_parts_of_another_number_of_examples_are_refused():
  with pytest.raises(ValueError, match=r'parts of \[2, 3\] examples'):
    batch_structures.part((np.zeros(2), np.zeros(3)), 0, 2)


@pytest.mark.quick
def test_nccl_is_refused_where_no_gpu_is_seen():
  distribute = tf.distribute.experimental
  options = distribute.CommunicationOptions(
    implementation=distribute.CommunicationImplementation.NCCL
  )
  with pytest.raises(ValueError, match='ask for NCCL, and this process sees'):
    tfps.AllReduceStrategy(tfps.Cluster.local(), options)


@pytest.mark.quick
def test_it_takes_of_a_gpus_memory_what_it_uses(monkeypatch):
  monkeypatch.delenv('TF_FORCE_GPU_ALLOW_GROWTH', raising=False)
  tfps.AllReduceStrategy(tfps.Cluster.local())
  assert os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] == 'true'


_ADDRESSES = ['localhost:1', 'localhost:2']


@pytest.mark.quick
@pytest.mark.parametrize(
  ('jobs', 'task', 'match'),
  [
    (
      {'worker': _ADDRESSES, 'ps': ['localhost:3']},
      ('worker', 0),
      'needs no ps, and the cluster has 1',
    ),
    ({'worker': _ADDRESSES}, ('evaluator', 0), 'this process is evaluator:0'),
    ({'worker': _ADDRESSES}, None, 'this process is no task'),
  ],
)
def test_a_cluster_of_another_kind_is_refused(jobs, task, match):
  cluster = tfps.Cluster(jobs, task and tfps.Task(*task), source='here')
  with pytest.raises(ValueError, match=f'^here: .*{match}'):
    tfps.AllReduceStrategy(cluster)


@pytest.mark.quick
@pytest.mark.parametrize(
  'kind', [tfps.BetweenGraphStrategy, tfps.ParameterServerStrategy]
)
def test_other_strategies_ask_for_ps(kind):
  is_chief = kind is tfps.ParameterServerStrategy
  task = None if is_chief else tfps.Task('worker', 0)
  cluster = tfps.Cluster({'worker': _ADDRESSES}, task, source='here')
  with pytest.raises(ValueError, match=r'here: the job ps is missing .*AllRed'):
    kind(cluster)


def test_a_dataset_of_files_for_each_worker_is_refused(strategy):
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = (
    tf.data.experimental.AutoShardPolicy.FILE
  )
  with pytest.raises(ValueError, match='policy of the dataset is FILE'):
    strategy.experimental_distribute_dataset(
      tf.data.Dataset.range(3).with_options(options)
    )


def test_a_queue_of_splits_is_refused(strategy):
  with (
    strategy.scope(),
    pytest.raises(ValueError, match='on whose ps it is kept'),
  ):
    queue_lib.SplitQueue(range(3))
  with pytest.raises(ValueError, match='AllReduceStrategy has none'):
    strategy.readers(small.dataset)


def test_a_normalization_keeps_what_its_batches_have_in_common(strategy):
  with strategy.scope():
    model = keras.Sequential([keras.layers.BatchNormalization(momentum=0.5)])
    model.compile('sgd', 'mse')
  x = np.full([8, 2], 4.0, 'f')
  model.fit(x, x, batch_size=8, epochs=2, verbose=0)
  np.testing.assert_allclose(model.layers[0].moving_mean, [3.0, 3.0])
