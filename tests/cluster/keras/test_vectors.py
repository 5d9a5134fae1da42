"""Vectors and towers of a model, exported apart from each other."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

parquet = pytest.importorskip('pyarrow.parquet')


def _read(path):
  table = parquet.read_table(path)
  vectors = np.array(table['vector'].to_pylist(), 'f')
  return table['key'].to_numpy(), vectors, table.num_rows


@pytest.mark.parametrize(
  'dtype',
  turns.rarely(['float32', 'mixed_bfloat16', 'bfloat16']),
)
def test_vectors_of_a_table_are_those_that_are_looked_up(
  tfps_cluster, tmp_path, dtype
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2000)
  with strategy.scope():
    layer = tfps.embeddings.Embedding(
      5, 'normal', eviction=tfps.embeddings.Lru(1000), dtype=dtype
    )
    for part in np.split(keys, 20):
      layer(part, training=True)
  path = tmp_path / 'vectors.parquet'
  number = tfps.serving.export_vectors(layer, path)
  found, vectors, num_rows = _read(path)
  assert number == num_rows == layer.table.num_keys() == len(np.unique(found))
  assert set(keys[-100:]) <= set(found) <= set(keys)
  looked_up = layer.table.lookup(found, training=False)
  np.testing.assert_array_equal(tf.cast(looked_up, tf.float32), vectors)
  parts = list(layer.table.items(max_bytes=100))
  assert max(len(part) for part, _ in parts) <= 10
  np.testing.assert_array_equal(np.concatenate([k for k, _ in parts]), found)
  strategy.close()


def test_vectors_of_a_static_layer_are_in_order(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(2)
  )
  with strategy.scope():
    layer = keras.layers.Embedding(101, 3)
    layer.build()
  path = tmp_path / 'vectors.parquet'
  assert tfps.serving.export_vectors(layer, path) == 101
  found, vectors, _ = _read(path)
  np.testing.assert_array_equal(found, np.arange(101))
  np.testing.assert_array_equal(vectors, layer.embeddings.numpy())
  strategy.close()


def test_towers_are_exported_alone_and_vectors_left_outside(
  tfps_cluster, tmp_path
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    user = keras.Input((), dtype='int64', name='user')
    item = keras.Input((), dtype='int64', name='item')
    users = tfps.embeddings.Embedding(4, 'normal', name='users')
    items = tfps.embeddings.Embedding(4, 'normal', name='items')
    dense = keras.layers.Dense(3)
    tower, other = dense(users(user)), dense(items(item))
    model = keras.Model([user, item], keras.layers.Dot(1)([tower, other]))
    ids = np.arange(50)
    model.compile('adagrad', 'mse', steps_per_execution=2)
    model.fit([ids, ids], np.ones(50), batch_size=25, verbose=0)
    keras.Model(user, tower).export(tmp_path / 'tower', verbose=False)
    vector = keras.Input((4,))
    keras.Model(vector, dense(vector)).export(tmp_path / 'rest', verbose=False)
    expected = keras.Model(user, tower).predict(ids, verbose=0)
  tfps.serving.export_vectors(users, tmp_path / 'users.parquet')
  strategy.close()

  served = tf.saved_model.load(tmp_path / 'tower')
  assert all('items' not in each.name for each in served.variables)
  np.testing.assert_allclose(served.serve(tf.constant(ids)), expected, 1e-5)
  found, vectors, _ = _read(tmp_path / 'users.parquet')
  assert sorted(found) == ids.tolist()
  rest = tf.saved_model.load(tmp_path / 'rest')
  assert sum(each.shape.num_elements() for each in rest.variables) == 15
  np.testing.assert_allclose(
    rest.serve(tf.constant(vectors[np.argsort(found)])), expected, 1e-5
  )


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  with pytest.raises(ImportError, match=r'pip .*tfps\[parquet\].* Vectors'):
    tfps.serving.export_vectors(keras.layers.Dense(2), tmp_path / 'vectors')


@pytest.mark.parametrize(
  ('layer', 'error', 'message'),
  [
    (keras.layers.Dense(2), TypeError, 'has no vectors. It takes tfps'),
    (
      keras.layers.Embedding(3, 2, name='raw'),
      ValueError,
      'raw has not been built',
    ),
    (
      tfps.embeddings.Embedding(2, name='raw'),
      ValueError,
      'table has not been built',
    ),
  ],
)
def test_what_has_no_vectors_is_named(tmp_path, layer, error, message):
  with pytest.raises(error, match=message):
    tfps.serving.export_vectors(layer, tmp_path / 'vectors.parquet')
  assert not list(tmp_path.iterdir())
