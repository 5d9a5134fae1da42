"""Steps that look rows up are sent these, however they look them up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import lookups
from tests.support import turns
import tfps
from tfps.variables import partitioners

_BATCH = 32

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_START = (
  np.random.default_rng(0)
  .normal(size=(lookups.ROWS, lookups.WIDTH))
  .astype('f')
)
_IDS = np.arange(6 * _BATCH) * 7 % lookups.ROWS
_SHARDS = partitioners.FixedShards(2)
_WAYS = {
  'coordinator': (tfps.ParameterServerStrategy, None),
  'coordinator, in shards': (tfps.ParameterServerStrategy, _SHARDS),
  'between graphs': (tfps.BetweenGraphStrategy, None),
  'between graphs, in shards': (tfps.BetweenGraphStrategy, _SHARDS),
}
_LOOKUPS = {name: name for name in lookups.NAMES}


def _model(name, optimizer):
  keras.utils.set_random_seed(1)
  model = keras.Sequential(
    [
      keras.layers.Input((), dtype='int64'),
      lookups.layer(name),
      keras.layers.Dense(1),
    ]
  )
  model.compile(optimizer, 'mse', steps_per_execution=3)
  first = model.layers[0]
  first.set_weights([_START, *first.get_weights()[1:]])
  return model


def _fit(model):
  model.fit(_IDS, np.sin(_IDS), batch_size=_BATCH, shuffle=False, verbose=0)
  return model.get_weights()


def _bytes(strategy):
  report = strategy.wire_report()
  return (sum(report.pulled) + sum(report.pushed)) / report.steps


@pytest.mark.parametrize(
  ('make', 'partitioner', 'name'),
  turns.by_turns(_LOOKUPS, _WAYS, rarely=lookups.RARELY),
)
def test_rows_are_sent_and_values_are_those_of_a_single_process(
  tfps_cluster, make, partitioner, name
):
  right = _fit(_model(name, 'sgd'))
  strategy = make(tfps_cluster.cluster, partitioner)
  with strategy.scope():
    model = _model(name, 'sgd')
  for value, other in zip(_fit(model), right, strict=True):
    np.testing.assert_array_equal(value, other)
  assert 0 < _bytes(strategy) < lookups.NUM_BYTES / 100


def _gradient(strategy, layer, ids):
  """The gradient of a table in a step, before any optimizer gets it."""
  found = []

  @tf.function
  def step(ids):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(tf.square(layer(ids)))
    found.append(tape.gradient(loss, layer.trainable_variables)[0])
    return loss

  strategy.run(step, args=(ids,))
  return found[0]


@pytest.mark.parametrize('partitioner', [None, _SHARDS])
@pytest.mark.parametrize('name', ['gather', 'embedding_lookup', 'cond'])
def test_the_gradient_is_one_of_rows(tfps_cluster, partitioner, name):
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster, partitioner)
  with strategy.scope():
    layer = lookups.layer(name)
    layer.build((None,))
  gradient = _gradient(strategy, layer, tf.constant(_IDS[:4]))
  assert isinstance(gradient, tf.IndexedSlices)


_NEEDLESS = {
  'what is computed from it': lambda t, i: tf.gather(t + 0.0, i),
  'all columns of it': lambda t, i: tf.gather(
    tf.gather(t, tf.range(lookups.WIDTH), axis=1), i
  ),
  'a matrix product with it': lambda t, i: (
    tf.gather(t, i) @ tf.transpose(t) @ tf.convert_to_tensor(t)
  ),
}


@pytest.mark.parametrize(
  'name', turns.rarely(list(_NEEDLESS), but=['what is computed from it'])
)
def test_a_table_that_is_sent_is_told_once(tfps_cluster, name, caplog):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = keras.Sequential(
      [
        keras.layers.Input((), dtype='int64'),
        lookups.Lookup(_NEEDLESS[name]),
        keras.layers.Dense(1),
      ]
    )
    model.compile('sgd', 'mse')
  for _ in range(2):
    model.fit(_IDS[:32], np.ones([32]), verbose=0)
  model.evaluate(_IDS[:32], np.ones([32]), verbose=0)
  told = [m for m in caplog.messages if 'all of this table' in m]
  assert len(told) == 1
  assert '6.1 MiB' in told[0]
  assert 'table' in told[0].split()[0]


def test_a_large_kernel_is_no_table(tfps_cluster, caplog):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = keras.Sequential(
      [keras.layers.Input((64,)), keras.layers.Dense(20_000)]
    )
    model.compile('sgd', 'mse')
  model.fit(np.ones([2, 64]), np.ones([2, 20_000]), verbose=0)
  assert not [m for m in caplog.messages if 'of this table' in m]


def test_a_regularized_table_that_is_clipped_is_told(tfps_cluster, caplog):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model('Embedding, l2', keras.optimizers.SGD(clipnorm=1.0))
  _fit(model)
  right = _fit(_model('Embedding, l2', keras.optimizers.SGD(clipnorm=1.0)))
  for value, other in zip(model.get_weights(), right, strict=True):
    np.testing.assert_array_equal(value, other)
  assert len([m for m in caplog.messages if 'dense gradient' in m]) == 1


def test_a_ps_gets_the_number_of_each_row_once(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  width = lookups.WIDTH
  with strategy.scope():
    model = keras.Sequential(
      [
        keras.layers.Input((), dtype='int64'),
        keras.layers.Embedding(100, width),
        keras.layers.Dense(1),
      ]
    )
    model.compile('adagrad', 'mse')

  def pushed(ids):
    before = sum(strategy.wire_report().pushed)
    model.fit(ids, np.ones(len(ids)), batch_size=len(ids), verbose=0)
    return sum(strategy.wire_report().pushed) - before

  few, many = np.arange(_BATCH) % 8, np.arange(_BATCH)
  pushed(few)
  assert pushed(many) - pushed(few) == (_BATCH - 8) * (8 + 4 * width)
