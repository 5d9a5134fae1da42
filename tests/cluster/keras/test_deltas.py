"""A base and its deltas are what a full export would be."""

import json
import pathlib
import re
import shutil
import zipfile

from absl import logging
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.keras.serving import delta_file
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_NEVER = 1e6  # seconds: tests write when they want it
_KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3000)
_ITEMS = np.arange(3000) * 3
_X = {'user': _KEYS, 'item': _ITEMS}
_Y = (np.arange(3000) % 5).astype('f')[:, None]


def _model():
  user = keras.Input((), dtype='int64', name='user')
  item = keras.Input((), dtype='int64', name='item')
  vectors = [
    tfps.embeddings.Embedding(
      3, eviction=tfps.embeddings.Lru(1000), name='users'
    )(user),
    keras.layers.Embedding(10_000, 4, name='items')(item),
  ]
  outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(vectors))
  model = keras.Model({'user': user, 'item': item}, outputs)
  model.compile('adagrad', 'mse', steps_per_execution=4)
  return model


def _fit(model, deltas, first, last):
  model.fit(
    {name: values[first:last] for name, values in _X.items()},
    _Y[first:last],
    batch_size=50,
    verbose=0,
    callbacks=[deltas],
  )


def _assert_equal(model, exported):
  for one, other in zip(model.variables, exported.variables, strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one.numpy(), other.numpy(), one.name)


_STRATEGIES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
  'in graph': tfps.replication.InGraphStrategy,
  'hybrid': tfps.replication.HybridStrategy,
  'alone': lambda cluster, partitioner: tf.distribute.get_strategy(),
}


@pytest.mark.parametrize(
  'name', turns.rarely(list(_STRATEGIES), but=['coordinator'])
)
def test_base_and_deltas_are_a_full_export(tfps_cluster, tmp_path, name):
  strategy = _STRATEGIES[name](
    tfps_cluster.cluster, partitioners.FixedShards(2)
  )
  with strategy.scope():
    model = _model()
  deltas = tfps.serving.Deltas(tmp_path / 'deltas', _NEVER)
  _fit(model, deltas, 0, 500)
  reader = tfps.serving.DeltaReader(tmp_path / 'deltas')
  assert reader.version == (1, 1)
  _fit(model, deltas, 400, 3000)  # the table grows
  _fit(model, deltas, 0, 50)
  assert reader.refresh() == 2
  model.export(tmp_path / 'full', verbose=False)
  getattr(strategy, 'close', lambda: None)()
  full = tf.saved_model.load(tmp_path / 'full')
  assert len(full.variables[0].numpy()) > 1024
  assert model.get_layer('users').table.num_evicted() > 1000
  _assert_equal(reader.model, full)
  x = {'user': np.r_[_KEYS[::50], 7], 'item': np.r_[_ITEMS[::50], 1]}
  x = {name: tf.constant(values) for name, values in x.items()}
  np.testing.assert_array_equal(reader(x), full.serve(x))
  version = reader.write_version(tmp_path / 'served')
  assert version == tmp_path / 'served' / '1'
  written = tf.saved_model.load(version)
  _assert_equal(written, full)
  np.testing.assert_array_equal(
    written.signatures['serving_default'](**x)['output_0'], full.serve(x)
  )


class Summing(keras.Model):
  """Sums up vectors of keys; without an Input that has their type."""

  def __init__(self):
    super().__init__()
    self.vectors = tfps.embeddings.Embedding(1, combiner='sum')

  def call(self, keys):
    return self.vectors(keys)


def test_a_subclass_is_served_by_its_signature(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = Summing()
    model.compile('sgd', 'mse')
  keys = _KEYS[:100, None]
  model.fit(keys, _Y[:100], verbose=0)
  with pytest.raises(TypeError, match='give input_signature'):
    tfps.serving.Deltas(tmp_path / 'failed').start(model)
  deltas = tfps.serving.Deltas(
    tmp_path / 'deltas',
    input_signature=[keras.InputSpec('int64', (None, 1))],
  )
  model.fit(keys, _Y[:100], verbose=0, callbacks=[deltas])
  reader = tfps.serving.DeltaReader(tmp_path / 'deltas')
  np.testing.assert_array_equal(
    reader(tf.constant(keys)), model.predict(keys, verbose=0)
  )
  strategy.close()


@pytest.mark.exhaustive
def test_bytes_are_those_of_touched_rows(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(2)
  )
  with strategy.scope():
    model = keras.Sequential([keras.layers.Embedding(10_000, 16)])
    model(np.zeros([1, 1], 'int64'))
  deltas = tfps.serving.Deltas(tmp_path, _NEVER)
  deltas.start(model)
  assert deltas.write() == 0
  first, second = model.variables[0].value.variables
  for shard in (first, second):
    shard.scatter_update(tf.IndexedSlices(tf.ones([5, 16]), range(5)))
  assert deltas.write() < 10 * (8 + 16 * 4) + 2048
  assert deltas.write() == 0
  reader = tfps.serving.DeltaReader(tmp_path)
  np.testing.assert_array_equal(
    reader.model.variables[0].numpy(), model.variables[0].numpy()
  )
  strategy.close()


@pytest.mark.parametrize(
  'admission',
  [
    pytest.param(
      tfps.embeddings.Counter(2), id='exact', marks=pytest.mark.exhaustive
    ),
    pytest.param(tfps.embeddings.BloomCounter(2, capacity=50), id='bloom'),
  ],
)
def test_counts_of_keys_without_a_row_are_left_out(tmp_path, admission):
  embed = tfps.embeddings.Embedding(4, admission=admission)
  model = keras.Sequential([keras.Input((), dtype='int64'), embed])
  deltas = tfps.serving.Deltas(tmp_path, _NEVER)
  deltas.start(model)
  keys = tf.range(20, dtype=tf.int64)
  for _ in range(2):
    embed.table.lookup(keys, training=True)
    deltas.write()
  assert embed.table.num_keys() == 20
  embed.table.rows_0.assign(tf.ones_like(embed.table.rows_0))
  deltas.write()
  reader = tfps.serving.DeltaReader(tmp_path)
  np.testing.assert_array_equal(reader(keys), np.ones([20, 4]))
  names = {
    part.name
    for number in (1, 2, 3)
    for part in delta_file.read(
      tmp_path / f'delta-00000001-{number:08}.npz', (1, number)
    )
  }
  prefix = embed.table.path
  own = ('rows', 'keys', 'counts', 'addresses')
  assert names == {f'{prefix}/{name}_0' for name in own}


_KINDS = ('bfloat16', 'float16', 'uint32', 'int64', 'bool')


class _Mixed(keras.layers.Layer):
  """A layer with variables of many types and shapes."""

  def build(self, input_shape):
    del input_shape
    for kind in _KINDS:
      for shape in ((), (3,), (2000, 7), (2, 3, 900)):
        self.add_weight(
          shape=shape,
          dtype=kind,
          initializer='zeros',
          trainable=False,
          name=f'{kind}_{len(self.weights)}',
        )
    self.add_weight(shape=(0, 4), name='empty')

  def call(self, inputs):
    return inputs + tf.cast(self.weights[0], tf.float32)


def _mixed(folder):
  model = keras.Sequential([keras.Input((1,)), _Mixed()])
  deltas = tfps.serving.Deltas(folder, _NEVER)
  deltas.start(model)
  return model, deltas


@pytest.mark.exhaustive
def test_types_and_shapes(tmp_path):
  model, deltas = _mixed(tmp_path / 'deltas')
  random = np.random.default_rng(0)
  reader = tfps.serving.DeltaReader(tmp_path / 'deltas')
  for _ in range(2):
    for variable in model.variables:
      value = variable.numpy()
      flat = value.reshape([-1])
      if flat.size:
        at = random.integers(0, flat.size, 3)
        flat[at] = random.integers(0, 2, 3).astype(value.dtype)
      variable.assign(flat.reshape(value.shape))
    deltas.write()
  deltas.stop()
  assert reader.refresh() == 2
  model.export(tmp_path / 'full', verbose=False)
  _assert_equal(reader.model, tf.saved_model.load(tmp_path / 'full'))


def _small(folder, *, touched=0, **arguments):
  """A model of one table, with deltas of so many rows."""
  model = keras.Sequential([keras.layers.Embedding(3000, 8)])
  model(np.zeros([1, 1], 'int64'))
  deltas = tfps.serving.Deltas(folder, _NEVER, **arguments)
  deltas.start(model)
  for number in range(touched):
    _touch(model, number, number + 1)
    deltas.write()
  return model, deltas


def _touch(model, first, last):
  model.variables[0].value[first:last].assign(tf.ones([last - first, 8]))


def _read(reader):
  return reader.model.variables[0].numpy()


def test_a_new_base_follows_when_deltas_are_larger(tmp_path):
  model, deltas = _small(tmp_path, touched=1)
  reader = tfps.serving.DeltaReader(tmp_path)
  loaded = reader.model
  for number in range(1, 4):
    model.variables[0].assign(model.variables[0].numpy() + 1)
    deltas.write()
    late = tfps.serving.DeltaReader(tmp_path)
    np.testing.assert_array_equal(_read(late), model.variables[0].numpy())
    assert reader.refresh() == 1
    assert reader.version == late.version == (number + 1, 0)
  # The bases have what was loaded already.
  assert reader.model is loaded
  np.testing.assert_array_equal(_read(reader), model.variables[0].numpy())
  bases = sorted(path.name for path in tmp_path.glob('base-*'))
  assert bases == ['base-00000003', 'base-00000004']
  # Another run writes a base that has nothing to do with those before.
  tfps.serving.Deltas(tmp_path, _NEVER, keep=1).start(model)
  assert len(list(tmp_path.iterdir())) == 1
  assert reader.refresh() == 0
  assert reader.version == (5, 0)


@pytest.mark.parametrize('keep', [1, 2])
def test_a_reader_follows_any_number_of_bases(tmp_path, keep):
  model, deltas = _small(tmp_path, touched=1, keep=keep)
  reader = tfps.serving.DeltaReader(tmp_path)
  for number in range(1, 5):
    _touch(model, number, number + 2)
    deltas.write()
    model.variables[0].assign(model.variables[0].numpy() + 1)
    deltas.write()
    reader.refresh()
    assert reader.version == tfps.serving.DeltaReader(tmp_path).version
    np.testing.assert_array_equal(_read(reader), model.variables[0].numpy())
  assert reader.version.base > 2


def test_a_failed_write_is_made_up_for(tmp_path, monkeypatch):
  model, deltas = _small(tmp_path / 'deltas', touched=1)
  warnings = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: warnings.append(text % args)
  )
  (tmp_path / 'deltas').rename(tmp_path / 'away')
  for number in range(10, 12):
    _touch(model, number, number + 1)
    deltas.stop()
  assert len(warnings) == 1
  assert 'deltas cannot be written to' in warnings[0]
  (tmp_path / 'away').rename(tmp_path / 'deltas')
  deltas.stop()
  reader = tfps.serving.DeltaReader(tmp_path / 'deltas')
  assert reader.version == (1, 2)
  np.testing.assert_array_equal(_read(reader), model.variables[0].numpy())


def _cut(path):
  path.write_bytes(path.read_bytes()[:-40])


def _flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def _number(path):
  with zipfile.ZipFile(path) as archive:
    entries = {name: archive.read(name) for name in archive.namelist()}
  manifest = json.loads(entries['manifest.json'])
  entries['manifest.json'] = json.dumps({**manifest, 'format': 99}).encode()
  with zipfile.ZipFile(path, 'w') as archive:
    for name, data in entries.items():
      archive.writestr(name, data)


def _swap(path):
  shutil.copy(path.with_name('delta-00000001-00000001.npz'), path)


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """A folder with a base and three deltas, and its files' contents."""
  folder = tmp_path_factory.mktemp('written')
  _small(folder, touched=3)
  return folder, {path: path.read_bytes() for path in folder.glob('*.npz')}


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_cut, 'delta-00000001-00000002.npz is damaged'),
    (_flip, 'delta-00000001-00000002.npz is damaged'),
    (pathlib.Path.unlink, 'delta-00000001-00000002.npz is missing'),
    (_number, 'delta-00000001-00000002.npz has format 99'),
    (_swap, 'delta-00000001-00000002.npz contains delta 1 of base 1'),
  ],
)
def test_a_delta_that_is_not_right_is_refused(written, damage, message):
  folder, contents = written
  damage(folder / 'delta-00000001-00000002.npz')
  try:
    with pytest.raises(tfps.CheckpointError, match=message):
      tfps.serving.DeltaReader(folder)
  finally:
    for path, data in contents.items():
      path.write_bytes(data)
  reader = tfps.serving.DeltaReader(folder)
  assert reader.version == (1, 3)


def test_a_reader_stays_at_the_delta_before_one_that_is_not_right(tmp_path):
  model, deltas = _small(tmp_path, touched=1)
  reader = tfps.serving.DeltaReader(tmp_path)
  for number in (1, 2):
    _touch(model, number, number + 1)
    deltas.write()
  path = tmp_path / 'delta-00000001-00000003.npz'
  data = path.read_bytes()
  _cut(path)
  with pytest.raises(tfps.CheckpointError):
    reader.refresh()
  assert reader.version == (1, 2)
  path.write_bytes(data)
  assert reader.refresh() == 1
  np.testing.assert_array_equal(_read(reader), model.variables[0].numpy())


def _other_files(folder):
  (folder / 'notes.txt').write_text('')
  _small(folder)


def _other_model(folder):
  _small(folder)
  _mixed(folder)


def _other_base_format(folder):
  _small(folder)
  path = folder / 'base-00000001' / 'tfps_base.json'
  path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
  tfps.serving.DeltaReader(folder)


def _strings(folder):
  model = keras.Sequential([keras.layers.Dense(1)])
  model.build((None, 1))
  model.layers[0].kernel._value = tf.Variable('text')
  tfps.serving.Deltas(folder).start(model)


@pytest.mark.parametrize(
  ('act', 'message'),
  [
    (lambda _: tfps.serving.Deltas('d', 0), 'every_secs=0. Give a positive'),
    (lambda _: tfps.serving.Deltas('d', keep=0), 'keep=0. Give a positive'),
    (lambda _: tfps.serving.Deltas('d').write(), r'start\(model\)'),
    (_other_files, 'has notes.txt, which is no base or delta'),
    (_other_model, 'base-00000001 is of another model: this one has'),
    (_other_base_format, 'tfps_base.json has format 2'),
    (_strings, 'kernel holds strings'),
    (
      lambda folder: tfps.serving.DeltaReader(folder / 'none'),
      'none is no directory. Give the one that',
    ),
    (lambda folder: tfps.serving.DeltaReader(folder), 'has no base. Give'),
  ],
)
def test_what_is_wrong_is_named(tmp_path, act, message):
  with pytest.raises(
    (ValueError, RuntimeError, tfps.CheckpointError), match=message
  ) as raised:
    act(tmp_path)
  assert not re.search(r'\bNone\b', str(raised.value))
