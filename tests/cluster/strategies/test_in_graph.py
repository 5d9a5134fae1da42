"""One graph spans all workers, and makes one update of what they compute."""

import functools

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import alone as alone_lib
from tests.support import slopes as slopes_lib
import tfps
from tfps.variables import partitioners

_WORKERS = 3
_SIZE = 12
_NUM_STEPS = 100
_RNG = np.random.default_rng(0)
_X = _RNG.integers(0, 12, (_SIZE * _NUM_STEPS, 3))
_Y = _RNG.random((len(_X), 1), dtype='f')

pytestmark = pytest.mark.tfps_cluster(workers=_WORKERS, ps=2)


def _model(optimizer, *, middle=(), **compile_args):
  return alone_lib.make_model(
    optimizer, lambda: [*middle, layers.Dense(1, 'tanh')], **compile_args
  )


def _train_alone(model, sizes):
  return alone_lib.train(model, _X, _Y, sizes)


@functools.cache
def _alone(name, num_steps):
  return _train_alone(_model(alone_lib.OPTIMIZERS[name]()), [_SIZE] * num_steps)


def _rare(*case):
  return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
  ('name', 'partitioner', 'num_steps'),
  [
    _rare('SGD', None, 100),
    _rare('SGD', partitioners.FixedShards(2), 100),
    _rare('momentum', partitioners.FixedShards(2), 100),
    _rare('Adam', None, 100),
    _rare('Adam', partitioners.FixedShards(2), 10),
    _rare('clipped Adam', None, 10),
    ('clipped Adam', partitioners.FixedShards(2), 10),
    _rare('scaled SGD', partitioners.FixedShards(2), 10),
  ],
)
def test_fit_is_like_one_process(tfps_cluster, name, partitioner, num_steps):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster, partitioner)
  with strategy.scope():
    model = _model(alone_lib.OPTIMIZERS[name](), steps_per_execution=2)
  number = _SIZE * num_steps
  model.fit(_X[:number], _Y[:number], _SIZE, shuffle=False, verbose=0)
  alone_lib.assert_same_weights(model, _alone(name, num_steps))
  assert int(model.optimizer.iterations) == num_steps


# Of two workers on a host, one ps is elsewhere, the other one with them.
_HOSTS = {
  **{f'worker:{i}': host for i, host in enumerate('aab')},
  **{f'ps:{i}': host for i, host in enumerate('ca')},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'host_of',
  [
    pytest.param(None, id='one'),
    pytest.param(_HOSTS, id='several'),
  ],
)
def test_batches_need_not_divide_by_the_workers(tfps_cluster, host_of):
  strategy = tfps.replication.InGraphStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(2), host_of=host_of
  )
  with strategy.scope():
    model = _model(keras.optimizers.Adam(0.05))
  number = 5 * 7 + 2  # the last for two of three workers
  model.fit(_X[:number], _Y[:number], batch_size=7, shuffle=False, verbose=0)
  alone = _model(keras.optimizers.Adam(0.05))
  alone_lib.assert_same_weights(model, _train_alone(alone, [7] * 5 + [2]))


@pytest.mark.exhaustive
def test_a_model_is_evaluated_and_predicts_as_in_one_process(tfps_cluster):
  x, y = _X[:50], _Y[:50]
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('sgd', metrics=['mae'])
  alone = _model('sgd', metrics=['mae'])
  np.testing.assert_allclose(
    model.evaluate(x, y, batch_size=8, verbose=0),
    alone.evaluate(x, y, batch_size=8, verbose=0),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    model.predict(x, batch_size=8, verbose=0),
    alone.predict(x, batch_size=8, verbose=0),
    rtol=1e-5,
  )


@pytest.mark.exhaustive
def test_each_worker_normalizes_its_share_and_the_means_are_kept(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model(
      'sgd', middle=[layers.BatchNormalization(momentum=0.5)], metrics=['mae']
    )
  before = model.layers[2].moving_mean.numpy()
  outputs = tf.reshape(
    tf.gather(model.layers[0].embeddings.numpy(), _X[:_SIZE]), [_SIZE, -1]
  )
  model.fit(_X[:_SIZE], _Y[:_SIZE], batch_size=_SIZE, shuffle=False, verbose=0)
  np.testing.assert_allclose(
    model.layers[2].moving_mean.numpy(),
    0.5 * before + 0.5 * tf.reduce_mean(outputs, axis=0).numpy(),
    rtol=1e-5,
    atol=1e-7,
  )


def test_dropout_differs_among_workers(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)

  class Keep(keras.Sequential):
    def predict_step(self, data):
      return self(data[0] if isinstance(data, tuple) else data, training=True)

  with strategy.scope():
    model = Keep([layers.Input((8,)), layers.Dropout(0.5, seed=1)])
    model.compile('sgd', 'mse')
  rows = model.predict(np.ones([_WORKERS, 8], 'f'), verbose=0)
  assert len(np.unique(rows, axis=0)) > 1


class _Slopes(slopes_lib.Slopes):
  """As the others, but tells the batch."""

  def step(self, batch):
    super().step(batch)
    return {'batch': batch}


def _dataset_fn(context):
  own = context.input_pipeline_id
  return tf.data.Dataset.counter(dtype=tf.int64).map(
    lambda i: tf.cast(10 * i + own, tf.float64)
  )


@pytest.mark.quick
@pytest.mark.parametrize('steps_per_execution', [_rare(1), 7])
def test_train_makes_each_update_of_the_mean(tfps_cluster, steps_per_execution):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  slopes = _Slopes(strategy)
  seen = []
  result = strategy.train(
    slopes.step,
    _dataset_fn,
    steps=30,
    steps_per_execution=steps_per_execution,
    hooks=[seen.append],
    log_every_secs=1e6,  # the metrics are those since the last line
  )
  mean = 10 * np.arange(30) + np.mean(range(_WORKERS))
  assert (result.step, result.steps) == (30, 30)
  assert float(slopes.number.numpy()) == pytest.approx(-mean.sum())
  assert int(slopes.optimizer.iterations) == 30
  assert result.metrics['batch'] == pytest.approx(mean.mean())
  assert [seen[0].moment, seen[-1].moment] == ['begin', 'end']
  strategy.train(slopes.step, _dataset_fn, steps=32)
  assert int(slopes.optimizer.iterations) == 32


def test_each_worker_has_a_replica_that_pulls_once(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    table = tf.Variable(tf.zeros([1000]))
    optimizer = keras.optimizers.SGD(1.0)
  devices = set()

  def step(batch):
    devices.add(tf.raw_ops.NoOp().device)
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(table * tf.cast(batch, tf.float32) + table)
    optimizer.apply([tape.gradient(loss, table)], [table])

  strategy.train(step, _dataset_fn, steps=4, steps_per_execution=4)
  assert {tf.DeviceSpec.from_string(d).task for d in devices} == {0, 1, 2}
  report = strategy.wire_report()
  assert sum(report.pulled) / 4 == pytest.approx(_WORKERS * 4000, rel=0.02)
  assert sum(report.pushed) / 4 == pytest.approx(_WORKERS * 4000, rel=0.02)


@pytest.mark.parametrize(
  ('by_host', 'host_of', 'pushes'),
  [
    (True, {}, _WORKERS),  # all share a host with the ps
    (False, _HOSTS, _WORKERS),
    (True, _HOSTS, 2),
    (True, {'ps:0': 'elsewhere'}, 1),
  ],
)
def test_workers_of_a_host_push_once(tfps_cluster, by_host, host_of, pushes):
  strategy = tfps.replication.InGraphStrategy(
    tfps_cluster.cluster, by_host=by_host, host_of=host_of
  )
  with strategy.scope():
    table = tf.Variable(tf.zeros([1000]))
    optimizer = keras.optimizers.SGD(1.0)

  def step(batch):
    gradient = tf.fill([1000], tf.cast(batch, tf.float32))
    optimizer.apply([gradient], [table])

  strategy.train(step, _dataset_fn, steps=4, steps_per_execution=4)
  pushed, other = strategy.wire_report().pushed
  assert pushed / 4 == pytest.approx(pushes * 4000, rel=0.02)
  assert other < 100
  np.testing.assert_allclose(table.numpy(), np.full([1000], -64.0))


@pytest.mark.exhaustive
def test_training_goes_on_from_a_checkpoint(tfps_cluster, tmp_path):
  def train(steps):
    strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
    slopes = _Slopes(strategy)
    checkpoint = tf.train.Checkpoint(
      number=slopes.number, optimizer=slopes.optimizer
    )
    result = strategy.train(
      slopes.step,
      _dataset_fn,
      steps=steps,
      checkpoint=checkpoint,
      checkpoint_dir=tmp_path,
    )
    return result, float(slopes.number.numpy())

  _, before = train(5)
  result, after = train(8)
  assert (result.step, result.steps) == (8, 3)
  assert after == pytest.approx(before - (10 * np.arange(3) + 1).sum())


@pytest.mark.exhaustive
def test_workers_read_their_own_data(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('sgd', steps_per_execution=5)

  def dataset_fn(context):
    data = tf.data.Dataset.from_tensor_slices((_X, _Y))
    own = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return own.repeat().batch(4)

  history = model.fit(dataset_fn, epochs=2, steps_per_epoch=10, verbose=0)
  assert int(model.optimizer.iterations) == 20
  assert history.history['loss'][1] < history.history['loss'][0]
  with pytest.raises(ValueError, match='Give steps_per_epoch'):
    model.fit(dataset_fn, verbose=0)


def _queue_shares(strategy, total, batch):
  """What each batch of a queue has of all updates, and a step that trains."""
  with strategy.scope():
    shares = tf.Variable(tf.zeros([total // batch], tf.float64))
    optimizer = keras.optimizers.SGD(1.0)

  def step(numbers):
    with tf.GradientTape() as tape:
      loss = tf.gather(shares, numbers[0] // batch)
    gradient = tf.convert_to_tensor(tape.gradient(loss, shares))
    optimizer.apply([gradient], [shares])
    return {'mean': tf.reduce_mean(tf.cast(numbers, tf.float64))}

  return shares, optimizer, step


@pytest.mark.parametrize('steps_per_execution', [_rare(1), 2, _rare(4)])
def test_a_step_has_what_a_queue_has_left(tfps_cluster, steps_per_execution):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  total, batch = 22 * 5, 5
  shares, optimizer, step = _queue_shares(strategy, total, batch)
  with strategy.scope():  # of six, six, six and four batches
    queue = tfps.input.SplitQueue(tfps.input.Ranges(total, 30))
  result = strategy.train(
    step,
    lambda context: queue.dataset(context).batch(batch),
    steps_per_execution=steps_per_execution,
    log_every_secs=1e6,
  )
  # Six steps of all three workers, and four of who has taken the last split.
  found = -shares.numpy()
  np.testing.assert_allclose(np.sort(found), [1 / 3] * 18 + [1] * 4)
  assert result.step == int(optimizer.iterations) == 10
  last = found > 0.5
  means = batch * np.arange(22) + 2
  total = means[~last].sum() / 3 + means[last].sum()
  assert result.metrics['mean'] == pytest.approx(total / 10)


@pytest.mark.exhaustive
def test_a_queue_is_gone_on_with_from_a_checkpoint(tfps_cluster, tmp_path):
  found = []
  for steps in (3, None):
    strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
    shares, optimizer, step = _queue_shares(strategy, 100, 5)
    with strategy.scope():
      queue = tfps.input.SplitQueue(
        tfps.input.Ranges(100, 25), visitation='exactly_once'
      )
    strategy.train(
      step,
      lambda context, queue=queue: queue.dataset(context).batch(5),
      steps=steps,
      steps_per_execution=2,
      checkpoint=tf.train.Checkpoint(shares=shares, optimizer=optimizer),
      checkpoint_dir=tmp_path,
    )
    found.append(-shares.numpy())
  first, last = found
  assert np.count_nonzero(first) == 9
  np.testing.assert_allclose(last[first > 0], 1 / 3)
  assert np.count_nonzero(last) == 20
  assert last.sum() == pytest.approx(int(optimizer.iterations))


def test_what_cannot_work_is_refused(tfps_cluster):
  with pytest.raises(ValueError, match='timeout_secs is 0'):
    tfps.replication.InGraphStrategy(tfps_cluster.cluster, timeout_secs=0)
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with pytest.raises(ValueError, match=r'InGraphStrategy.train'):
    tfps.Coordinator(strategy)
  slopes = _Slopes(strategy)

  def ends(context):
    return _dataset_fn(context).take(3)

  with pytest.raises(ValueError, match='ran out'):
    strategy.train(slopes.step, ends, steps=5)
  with pytest.raises(TypeError, match='return metrics by name'):
    strategy.train(lambda batch: batch, _dataset_fn, steps=6)
