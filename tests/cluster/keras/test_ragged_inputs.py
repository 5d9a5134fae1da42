"""Ragged and sparse batches are trained on as in a single process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_ROWS, _N, _BATCH = 30, 21, 4
_IDS = [[(3 * i + j) % _ROWS for j in range(i % 4)] for i in range(_N)]
_Y = np.sin(np.arange(_N, dtype='f'))[:, np.newaxis]
_SHARDS = partitioners.FixedShards(2)
_STRATEGIES = {
  'coordinator, in shards': lambda cluster: tfps.ParameterServerStrategy(
    cluster, _SHARDS
  ),
  'between graphs': tfps.BetweenGraphStrategy,
  'in graph': tfps.replication.InGraphStrategy,
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs, in shards': lambda cluster: tfps.BetweenGraphStrategy(
    cluster, _SHARDS
  ),
  'hybrid': tfps.replication.HybridStrategy,
}


_KINDS = {'ragged': lambda ids: ids, 'sparse': lambda ids: ids.to_sparse()}


class Summing(keras.Model):
  """Adds up the rows of an example's ids; some examples have none."""

  def __init__(self):
    super().__init__()
    self.table = keras.layers.Embedding(_ROWS, 3)
    self.table.build((None,))
    self.dense = keras.layers.Dense(1)
    self.dense.build((None, 3))
    self.built = True

  def call(self, ids):
    if isinstance(ids, tf.SparseTensor):
      ids = tf.RaggedTensor.from_sparse(ids)
    rows = ids.with_values(self.table(ids.values))
    return self.dense(tf.reduce_sum(rows, axis=1))


def _dataset(kind):
  ids = tf.ragged.constant(_IDS, dtype=tf.int64)
  examples = tf.data.Dataset.from_tensor_slices((ids, _Y)).batch(_BATCH)
  return examples.map(lambda ids, y: (_KINDS[kind](ids), y))


def _results(kind, scope):
  keras.utils.set_random_seed(1)
  with scope:
    model = Summing()
    model.compile(keras.optimizers.Adagrad(0.1), 'mse', steps_per_execution=2)
    model.optimizer.build(model.trainable_variables)
  history = model.fit(_dataset(kind), epochs=2, verbose=0).history['loss']
  evaluated = model.evaluate(_dataset(kind), verbose=0)
  predicted = model.predict(_dataset(kind).map(lambda x, y: x), verbose=0)
  return history, evaluated, predicted, *model.get_weights()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('make', 'kind'),
  turns.by_turns(
    {kind: kind for kind in _KINDS},
    {name: (make,) for name, make in _STRATEGIES.items()},
  ),
)
def test_they_are_trained_on_as_in_a_single_process(tfps_cluster, make, kind):
  found = _results(kind, make(tfps_cluster.cluster).scope())
  alone = _results(kind, tf.name_scope(''))
  assert np.shape(found[2]) == (_N, 1)
  for mine, theirs in zip(found, alone, strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=2, ps=1, devices_per_worker=2)
@pytest.mark.parametrize('kind', _KINDS)
def test_they_are_divided_among_devices(tfps_cluster, kind):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = Summing()
    model.compile(keras.optimizers.SGD(0.1), 'mse')
  model.fit(_dataset(kind), epochs=2, verbose=0)
  assert int(model.optimizer.iterations) == 2 * -(-_N // _BATCH)
  predicted = model.predict(_dataset(kind).map(lambda x, y: x), verbose=0)
  ids = tf.ragged.constant(_IDS, dtype=tf.int64)
  np.testing.assert_allclose(predicted, model(ids), rtol=1e-5, atol=1e-6)
