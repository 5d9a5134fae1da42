"""A step has a replica on each of a worker's devices; one push is made."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import alone as alone_lib
import tfps
from tfps.variables import partitioners

_REPLICAS = 2
_SIZE = 8
_RNG = np.random.default_rng(0)
_X = _RNG.integers(0, 12, (_SIZE * 100, 3))
_Y = _RNG.random((len(_X), 1), dtype='f')

pytestmark = pytest.mark.tfps_cluster(
  workers=1, ps=2, devices_per_worker=_REPLICAS
)


def _model(optimizer, *, middle=(), steps_per_execution=1):
  return alone_lib.make_model(
    optimizer,
    lambda: [*middle, layers.Dense(1, 'tanh')],
    metrics=['mae'],
    steps_per_execution=steps_per_execution,
  )


def _train_alone(model, sizes):
  return alone_lib.train(model, _X, _Y, sizes)


def _rare(*case):
  return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
  ('name', 'partitioner', 'num_steps', 'updates'),
  [
    _rare('SGD', None, 100, None),
    _rare('SGD', partitioners.FixedShards(2), 100, None),
    _rare('momentum', partitioners.FixedShards(2), 100, None),
    _rare('Adam', None, 100, None),
    ('Adam', partitioners.FixedShards(2), 4, tfps.updates.Sync()),
    _rare('clipped Adam', None, 10, None),
    _rare('scaled SGD', partitioners.FixedShards(2), 10, None),
  ],
)
def test_fit_is_like_one_device(
  tfps_cluster, name, partitioner, num_steps, updates
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioner, updates=updates
  )
  assert strategy.num_replicas_in_sync == _REPLICAS
  with strategy.scope():
    model = _model(alone_lib.OPTIMIZERS[name](), steps_per_execution=2)
  number = _SIZE * num_steps
  model.fit(_X[:number], _Y[:number], _SIZE, shuffle=False, verbose=0)
  sizes = [_SIZE] * num_steps
  alone_lib.assert_same_weights(
    model, _train_alone(_model(alone_lib.OPTIMIZERS[name]()), sizes)
  )
  assert int(model.optimizer.iterations) == num_steps


@pytest.mark.exhaustive
def test_batches_need_not_divide_by_the_replicas(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('sgd', middle=[layers.Dropout(0.0)])
  alone = _model('sgd', middle=[layers.Dropout(0.0)])
  number = 3 * 7 + 1
  with tfps.Coordinator(strategy) as coordinator:
    for i in range(4):  # one at a time, whose gradients are of one model
      rows = slice(7 * i, min(7 * i + 7, number))
      model.fit(_X[rows], _Y[rows], 7, shuffle=False, verbose=0)
    alone_lib.assert_same_weights(model, _train_alone(alone, [7, 7, 7, 1]))
    np.testing.assert_allclose(
      model.evaluate(_X[:number], _Y[:number], batch_size=7, verbose=0),
      alone.evaluate(_X[:number], _Y[:number], batch_size=7, verbose=0),
      rtol=1e-5,
    )
    np.testing.assert_allclose(
      model.predict(_X[:number], batch_size=7, verbose=0),
      alone.predict(_X[:number], batch_size=7, verbose=0),
      rtol=1e-5,
    )
    coordinator.join()


def _slopes(strategy, size=1):
  with strategy.scope():
    number = tf.Variable(tf.zeros([size], tf.float64), name='number')
    optimizer = keras.optimizers.SGD(1.0)
  devices = set()

  def step(batch):
    devices.add(tf.raw_ops.NoOp().device)
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(number * batch) / strategy.num_replicas_in_sync
    optimizer.apply([tape.gradient(loss, number)], [number])
    return {'batch': batch}

  return step, number, devices


def _count(context):
  assert context.num_replicas_in_sync == _REPLICAS
  assert context.get_per_replica_batch_size(8) == 8 // _REPLICAS
  return tf.data.Dataset.counter().map(lambda i: tf.cast(i, tf.float64))


def test_train_has_a_batch_for_each_replica_and_pushes_once(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  step, number, devices = _slopes(strategy, size=1000)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.in_flight_per_worker = 1
    result = coordinator.train(step, _count, steps=10, steps_per_execution=5)
  # Batches 0 and 1 make the first step, and so on.
  mean = 2 * np.arange(10) + 0.5
  np.testing.assert_allclose(number.numpy(), -mean.sum())
  assert result.metrics['batch'] == pytest.approx(mean.mean())
  assert devices == {'/device:CPU:0', '/device:CPU:1'}
  report = strategy.wire_report()
  assert sum(report.pulled) / 10 == pytest.approx(8000, rel=0.02)
  assert sum(report.pushed) / 10 == pytest.approx(8000, rel=0.02)


@pytest.mark.parametrize(
  'updates',
  [tfps.updates.Accumulate(2), tfps.updates.LocalSteps(2, 0.5)],
  ids=['Accumulate', 'LocalSteps'],
)
def test_fewer_updates_are_of_what_replicas_have_added_up(
  tfps_cluster, updates
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster, updates=updates)
  step, number, _ = _slopes(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.in_flight_per_worker = 1
    coordinator.train(step, _count, steps=8, steps_per_execution=4)
  total = (2 * np.arange(8) + 0.5).sum()
  is_mean = isinstance(updates, tfps.updates.Accumulate)
  np.testing.assert_allclose(number.numpy(), -total / (2 if is_mean else 1))


def test_the_stock_way_of_input_gives_each_replica_a_batch(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  step, number, _ = _slopes(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:

    def make():
      return strategy.distribute_datasets_from_function(_count)

    iterator = iter(coordinator.create_per_worker_dataset(make))

    @tf.function
    def do(iterator):
      metrics = strategy.run(step, args=(next(iterator),))
      return strategy.reduce('sum', metrics['batch'], axis=None)

    values = [coordinator.schedule(do, args=(iterator,)) for _ in range(3)]
    coordinator.join()
    sums = sorted(float(value.fetch()) for value in values)
  assert sums == [1, 5, 9]
  np.testing.assert_allclose(number.numpy(), -7.5)


def test_fit_takes_a_batch_for_each_replica_from_a_workers_dataset(
  tfps_cluster,
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('sgd', steps_per_execution=5)

  def dataset_fn(context):
    size = context.get_per_replica_batch_size(_SIZE)
    return tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(size).repeat()

  history = model.fit(dataset_fn, epochs=2, steps_per_epoch=10, verbose=0)
  assert int(model.optimizer.iterations) == 20
  assert history.history['loss'][1] < history.history['loss'][0]


def test_keras_moving_averages_get_the_replicas_mean(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('sgd', middle=[layers.BatchNormalization(momentum=0.5)])
  outputs = tf.reshape(
    tf.gather(model.layers[0].embeddings.numpy(), _X[:_SIZE]), [_SIZE, -1]
  )
  model.fit(_X[:_SIZE], _Y[:_SIZE], batch_size=_SIZE, shuffle=False, verbose=0)
  np.testing.assert_allclose(
    model.layers[2].moving_mean.numpy(),
    0.5 * tf.reduce_mean(outputs, axis=0).numpy(),
    rtol=1e-5,
    atol=1e-7,
  )


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=2, ps=2, devices_per_worker=_REPLICAS)
def test_in_graph_has_the_replicas_of_all_workers(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  step, number, devices = _slopes(strategy)
  strategy.train(step, _count, steps=10, steps_per_execution=5)
  np.testing.assert_allclose(number.numpy(), -(2 * np.arange(10) + 0.5).sum())
  assert len(devices) == 4
  with strategy.scope():
    model = _model('adam')
  model.fit(_X[:90], _Y[:90], 9, shuffle=False, verbose=0)
  alone = _train_alone(_model('adam'), [9] * 10)
  alone_lib.assert_same_weights(model, alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'updates',
  [
    pytest.param(None, id='Async'),
    pytest.param(tfps.updates.Sync(), id='Sync'),
  ],
)
def test_each_replica_has_a_batch_of_a_queue(tfps_cluster, updates):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster, updates=updates)
  with strategy.scope():
    shares = tf.Variable(tf.zeros([9], tf.float64))
    optimizer = keras.optimizers.SGD(1.0)
    queue = tfps.input.SplitQueue(tfps.input.Ranges(9, 4))

  def step(number):
    with tf.GradientTape() as tape:
      loss = tf.gather(shares, number) / strategy.num_replicas_in_sync
    gradient = tf.convert_to_tensor(tape.gradient(loss, shares))
    optimizer.apply([gradient], [shares])

  def dataset_fn(context):
    assert context.num_replicas_in_sync == _REPLICAS
    return queue.dataset(context)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    result = coordinator.train(step, dataset_fn, steps_per_execution=3)
  assert result.step == int(optimizer.iterations) == 5
  np.testing.assert_allclose(-shares.numpy(), [1 / 2] * 8 + [1])


@pytest.mark.exhaustive
def test_fit_gives_each_replica_a_batch_of_a_queue(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('sgd', steps_per_execution=3)
    queue = tfps.input.SplitQueue(tfps.input.Ranges(40, 20))
  size = _SIZE // _REPLICAS  # five batches of each split, of which two are one

  def dataset_fn(context):
    numbers = queue.dataset(context).batch(size)
    return numbers.map(lambda i: (tf.gather(_X, i), tf.gather(_Y, i)))

  history = model.fit(dataset_fn, verbose=0)
  alone = _model('sgd')
  alone_history = alone.fit(_X[:40], _Y[:40], _SIZE, shuffle=False, verbose=0)
  alone_lib.assert_same_weights(model, alone)
  for name, values in alone_history.history.items():
    np.testing.assert_allclose(history.history[name], values, rtol=1e-5)
