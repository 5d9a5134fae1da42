"""Models that were trained on a cluster are saved, and read elsewhere."""

import subprocess
import sys

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps import testing
from tfps.variables import partitioners

_RNG = np.random.default_rng(0)
_X = {
  'x': _RNG.random((32, 4), dtype='f'),
  'ids': _RNG.integers(0, 30, (32, 5)).astype('i'),
}
_Y = _X['x'].sum(1, keepdims=True)


# Has this process read and write all; ps would do so where they are.
_HERE = tf.train.CheckpointOptions(experimental_io_device='/device:CPU:0')


def _build() -> keras.Model:
  x = layers.Input((4,), name='x')
  ids = layers.Input((5,), dtype='int32', name='ids')
  table = layers.Flatten()(layers.Embedding(30, 3)(ids))
  joined = layers.BatchNormalization()(layers.Concatenate()([x, table]))
  return keras.Model({'x': x, 'ids': ids}, layers.Dense(1)(joined))


def _compiled() -> keras.Model:
  model = _build()
  model.compile(keras.optimizers.Adam(0.1, use_ema=True), 'mse')
  model.optimizer.build(model.trainable_variables)
  return model


def _train_and_save(strategy, directory):
  keras.utils.set_random_seed(1)
  with strategy.scope():
    model = _compiled()
  model.fit(_X, _Y, verbose=0)
  model.save(directory / 'model.keras')
  model.save_weights(directory / 'model.weights.h5')
  _checkpoint(model).write(str(directory / 'checkpoint'), _HERE)
  np.savez(directory / 'values.npz', *_values(model))
  np.save(directory / 'outputs.npy', model.predict(_X, verbose=0))
  return model


def _checkpoint(model):
  return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def _values(model):
  return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def _in_shards(cluster):
  """As many as there are ps."""
  return partitioners.FixedShards(cluster.num_ps)


def _whole(cluster):
  del cluster


STRATEGIES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
}

_READ_WITHOUT_TFPS = """
import pathlib
import sys
import keras
import numpy as np
import tensorflow as tf


def check_all(directory):
  values = list(np.load(directory / 'values.npz').values())
  outputs = np.load(directory / 'outputs.npy')
  inputs = dict(np.load(directory / 'inputs.npz'))

  def check(model):
    found = [v.numpy() for v in model.weights]
    found += [v.numpy() for v in model.optimizer.variables]
    for value, wanted in zip(found, values, strict=True):
      np.testing.assert_array_equal(value, wanted)
    np.testing.assert_allclose(
      model(inputs, training=False), outputs, rtol=1e-5)

  loaded = keras.models.load_model(directory / 'model.keras')
  check(loaded)

  def fresh():
    model = keras.models.clone_model(loaded)
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), 'mse')
    model.optimizer.build(model.trainable_variables)
    return model

  model = fresh()
  model.load_weights(directory / 'model.weights.h5')
  check(model)

  model = fresh()
  checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
  checkpoint.read(str(directory / 'checkpoint')).assert_consumed()
  check(model)

  exported = tf.saved_model.load(directory / 'exported')
  served = exported.serve({k: tf.constant(v) for k, v in inputs.items()})
  np.testing.assert_allclose(served, outputs, rtol=1e-5)


check_all(pathlib.Path(sys.argv[1]))
assert 'tfps' not in sys.modules
"""


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize('kind', list(STRATEGIES))
def test_they_are_read_without_a_cluster(tfps_cluster, kind, tmp_path):
  cluster = tfps_cluster.cluster
  strategy = STRATEGIES[kind](cluster, _in_shards(cluster))
  model = _train_and_save(strategy, tmp_path)
  model.export(tmp_path / 'exported', verbose=False)
  np.savez(tmp_path / 'inputs.npz', **_X)
  subprocess.run(
    [sys.executable, '-c', _READ_WITHOUT_TFPS, tmp_path],
    check=True,
    timeout=240,
    cwd=tmp_path,
  )


def _by_keras(strategy, directory):
  with strategy.scope():
    return keras.models.load_model(directory / 'model.keras')


def _by_weights(strategy, directory):
  with strategy.scope():
    model = _compiled()
  model.load_weights(directory / 'model.weights.h5')
  return model


def _by_checkpoint(strategy, directory):
  with strategy.scope():
    model = _compiled()
  path = str(directory / 'checkpoint')
  _checkpoint(model).read(path, _HERE).assert_consumed()
  return model


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('kind', 'cut', 'cut_later'),
  [
    ('coordinator', _in_shards, _in_shards),
    ('between graphs', _whole, _in_shards),
  ],
)
def test_they_are_read_into_another_cluster(kind, cut, cut_later, tmp_path):
  with testing.InProcessCluster(num_workers=1, num_ps=2) as servers:
    cluster = servers.cluster
    _train_and_save(STRATEGIES[kind](cluster, cut(cluster)), tmp_path)
  values = list(np.load(tmp_path / 'values.npz').values())
  outputs = np.load(tmp_path / 'outputs.npy')
  with testing.InProcessCluster(num_workers=1, num_ps=3) as servers:
    cluster = servers.cluster
    for read in (_by_keras, _by_weights, _by_checkpoint):
      servers.heal()
      strategy = STRATEGIES[kind](cluster, cut_later(cluster))
      model = read(strategy, tmp_path)
      for value, expected in zip(_values(model), values, strict=True):
        np.testing.assert_array_equal(value, expected)
      np.testing.assert_allclose(
        model.predict(_X, verbose=0), outputs, rtol=1e-5
      )
    model.fit(_X, _Y, verbose=0)
    assert int(model.optimizer.iterations) == 2
