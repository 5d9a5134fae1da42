import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)
_IDS = np.array([[3, 1, 3], [7, 3, -2]])


def _unsharded(cluster):
  return tfps.BetweenGraphStrategy(cluster)


def _sharded(cluster):
  return tfps.BetweenGraphStrategy(cluster, partitioners.FixedShards(2))


@pytest.fixture(params=[_unsharded, _sharded])
def layer(request, tfps_cluster):
  with request.param(tfps_cluster.cluster).scope():
    layer = keras.layers.Embedding(10, 2)
    layer.build()
  layer.embeddings.value.assign(np.arange(20, dtype='f').reshape(10, 2))
  return layer


def test_rows_come_in_the_order_asked_for(layer):
  table = np.arange(20, dtype='f').reshape(10, 2)
  np.testing.assert_array_equal(layer(_IDS), table[_IDS])


@pytest.mark.parametrize('dtype', ['uint8', 'int8'])
def test_rows_of_large_tables_are_found_by_short_integers(tfps_cluster, dtype):
  values = np.arange(600, dtype='f').reshape(300, 2)
  ids = np.array([0, 5, 200 if dtype == 'uint8' else -1], dtype)
  with _unsharded(tfps_cluster.cluster).scope():
    table = keras.Variable(values)
  take = tf.function(lambda ids: keras.ops.take(table, ids, axis=0))
  np.testing.assert_array_equal(take(ids), values[ids])


def test_gradients_of_duplicates_are_summed_once(layer):
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(layer(_IDS) * [1.0, 2.0])
  gradient = tape.gradient(loss, layer.embeddings.value)
  assert isinstance(gradient, tf.IndexedSlices)
  indices = gradient.indices.numpy().tolist()
  assert sorted(indices) == [1, 3, 7, 8]
  row = gradient.values.numpy()[indices.index(3)]
  np.testing.assert_array_equal(row, [3.0, 6.0])


def _reads(function, *args) -> list[str]:
  """The kinds of operations that read variables, gradients' included."""
  graph = function.get_concrete_function(*args).graph
  kinds = [operation.type for operation in graph.get_operations()]
  return [k for k in kinds if k in ('ReadVariableOp', 'ResourceGather')]


def test_an_embedding_moves_only_its_distinct_rows(layer):
  @tf.function
  def step(ids):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(layer(ids))
    return tape.gradient(loss, layer.embeddings.value).values

  spec = tf.TensorSpec([None, 3], tf.int64)
  assert set(_reads(step, spec)) == {'ResourceGather'}
  assert step(_IDS).shape == [4, 2]


def test_a_table_of_this_process_goes_keras_own_way():
  layer = keras.layers.Embedding(10, 2)
  layer.build()
  spec = tf.TensorSpec([None, 3], tf.int64)
  assert 'ReadVariableOp' in _reads(tf.function(layer), spec)
