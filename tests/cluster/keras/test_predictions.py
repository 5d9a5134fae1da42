"""Predictions of workers are those of a single process."""

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps import replication

_X = np.arange(10, dtype='f')[:, None]

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=1)


@pytest.fixture
def strategy(tfps_cluster):
  return tfps.ParameterServerStrategy(tfps_cluster.cluster)


class Noise(keras.layers.Layer):
  """Adds random numbers, in predictions too."""

  def __init__(self) -> None:
    super().__init__()
    self.seed_generator = keras.random.SeedGenerator(3)

  def call(self, x):
    return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)


class Of(keras.Model):
  """A model of a function."""

  def __init__(self, function) -> None:
    super().__init__()
    self.function = function

  def predict_step(self, data):
    return self.function(data)


def _ragged(x):
  return tf.RaggedTensor.from_row_lengths(
    tf.range(tf.reduce_sum(tf.cast(x, tf.int32))), tf.cast(x[:, 0], tf.int32)
  )


KINDS = {
  'ragged': _ragged,
  'sparse': tf.sparse.from_dense,
  'scalar': tf.reduce_sum,
  'nested': lambda x: {'x': x, 'others': [2 * x, tf.as_string(x)]},
}


def _predict(function, steps_per_execution=1):
  model = Of(function)
  model.compile(steps_per_execution=steps_per_execution)
  found = model.predict(_X, batch_size=4, verbose=0)
  if isinstance(found, tf.SparseTensor):
    return tf.sparse.to_dense(found).numpy()
  return found.to_list() if isinstance(found, tf.RaggedTensor) else found


@pytest.mark.parametrize('kind', KINDS)
def test_outputs_of_any_kind(strategy, kind):
  with strategy.scope():
    found = _predict(KINDS[kind])
  keras.tree.map_structure(
    np.testing.assert_array_equal, found, _predict(KINDS[kind])
  )


def test_outputs_of_several_replicas(tfps_cluster):
  with replication.InGraphStrategy(tfps_cluster.cluster).scope():
    found = _predict(tf.sparse.from_dense, steps_per_execution=2)
  np.testing.assert_array_equal(found, _X)


def test_random_numbers(strategy):
  with strategy.scope():
    model = keras.Sequential([Noise()])
  alone = keras.Sequential([Noise()])
  for _ in range(2):
    np.testing.assert_array_equal(
      model.predict(_X, batch_size=1, verbose=0),
      alone.predict(_X, batch_size=1, verbose=0),
    )


def test_few_batches_are_taken_ahead(strategy):
  done, lock = [], threading.Lock()

  def work(x):
    time.sleep(0.01)
    with lock:
      done.append(x)
    return x

  class Ahead(keras.callbacks.Callback):
    most = 0

    def on_predict_batch_end(self, batch, logs=None):
      self.most = max(self.most, batch + 1 - len(done))

  with strategy.scope():
    model = Of(
      lambda x: tf.reshape(tf.numpy_function(work, [x], tf.float32), [1, 1])
    )
  ahead = Ahead()
  model.predict(
    np.zeros([40, 1], 'f'), batch_size=1, callbacks=[ahead], verbose=0
  )
  assert len(done) == 40
  assert ahead.most <= 4


def test_callbacks_use_outputs_as_arrays(strategy):
  found = []

  class Uses(keras.callbacks.Callback):
    def on_predict_batch_end(self, batch, logs=None):
      outputs = logs['outputs']
      found.append(
        [len(outputs), float(outputs[-1][0]), *map(float, outputs[:, 0])]
      )
      assert [float(row[0]) for row in outputs] == found[-1][2:]
      assert outputs.dtype == tf.float32
      assert outputs.shape == (5, 1)

  with strategy.scope():
    model = Of(lambda x: 2 * x)
  model.predict(_X, batch_size=5, callbacks=[Uses()], verbose=0)
  assert found == [[5, 8, 0, 2, 4, 6, 8], [5, 18, 10, 12, 14, 16, 18]]
