"""Tables are saved and restored in slices, of which this process has one."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps._compat import tensor_bundle
from tfps.recovery import snapshots
from tfps.variables import row_writes

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=3)

_SLICE_BYTES = 16 << 10
_KEYS = np.arange(4000)
_WIDTH = 4  # so that initial values are a slice


@pytest.fixture(autouse=True)
def _slice_bytes(monkeypatch):
  monkeypatch.setattr(row_writes, 'SLICE_BYTES', _SLICE_BYTES)


def _model(num_shards=None):
  inputs = keras.Input((), dtype='int64')
  outputs = tfps.embeddings.Embedding(
    _WIDTH,
    num_shards=num_shards,
    eviction=tfps.embeddings.Ttl(steps=10**6),
    name='keyed',
  )(inputs)
  model = keras.Model(inputs, outputs)
  model.compile('adagrad', 'mse')
  model.optimizer.build(model.trainable_variables)
  return model


def _trained(model):
  model.fit(_KEYS, np.ones([4000, _WIDTH]), batch_size=1000, verbose=0)
  return model


class _Largest:
  """Notes the largest value that a method returns to this process."""

  def __init__(self, monkeypatch, owner, name):
    self.num_bytes = self.count = 0
    theirs = getattr(owner, name)

    def noting(*args, **kwargs):
      value = theirs(*args, **kwargs)
      if not tf.is_tensor(value) or '/job:ps' not in value.device:
        num_bytes = np.asarray(value).nbytes
        self.num_bytes = max(self.num_bytes, num_bytes)
        self.count += num_bytes > _SLICE_BYTES // 2
      return value

    monkeypatch.setattr(owner, name, noting)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('model.weights.h5', {}),
    ('divided.weights.json', {'max_shard_size': 1e-4}),
  ],
)
def test_files_of_keras_have_slices(tfps_cluster, tmp_path, name, options):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _trained(_model())
    model.save_weights(tmp_path / name, **options)
    sizes = []
    for path in tmp_path.glob('*.h5'):
      with h5py.File(path) as file:
        file.visititems(lambda _, it: sizes.append(getattr(it, 'nbytes', 0)))
    assert max(sizes) <= _SLICE_BYTES
    assert sum(sizes) > 10 * _SLICE_BYTES
    other = _model(num_shards=2)
    other.load_weights(tmp_path / name)
    np.testing.assert_array_equal(
      other.predict(_KEYS, verbose=0), model.predict(_KEYS, verbose=0)
    )
  strategy.close()


@pytest.mark.exhaustive
def test_checkpoints_are_read_in_slices_for_other_shards(
  tfps_cluster, tmp_path, monkeypatch
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  by_ps = tf.train.CheckpointOptions()
  with strategy.scope():
    model = _trained(_model())
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.write(str(tmp_path / 'saved'), by_ps)
    other = _model(num_shards=2)
    read = _Largest(monkeypatch, tensor_bundle.Reader, 'rows')
    tf.train.Checkpoint(model=other).read(path, by_ps).assert_consumed()
    assert 0 < read.num_bytes <= _SLICE_BYTES
    assert read.count > 10
    np.testing.assert_array_equal(
      other.predict(_KEYS, verbose=0), model.predict(_KEYS, verbose=0)
    )
  strategy.close()


@pytest.mark.exhaustive
def test_what_ps_write_is_read_back_by_ps(tfps_cluster, tmp_path, monkeypatch):
  recovery = tfps.Recovery(tmp_path, every_secs=3600, written_by='ps')
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=recovery
  )
  with strategy.scope():
    read = _Largest(monkeypatch, snapshots.Snapshot, 'read')
    _trained(_model())
    strategy.guard.copies.keep()
    assert strategy.guard.snapshotter.latest is not None
    assert read.num_bytes == 0
  strategy.close()
