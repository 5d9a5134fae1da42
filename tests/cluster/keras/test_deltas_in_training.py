"""Deltas are written while a model is trained."""

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.keras.serving import folder

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_NEVER = 1e6  # seconds: tests write when they want it


@pytest.mark.exhaustive
def test_deltas_are_written_while_others_train(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    user = keras.Input((), dtype='int64', name='user')
    layer = tfps.embeddings.Embedding(1, 'zeros', name='users')
    model = keras.Model(user, layer(user))
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(model.trainable_variables)

  def step(keys):
    with tf.GradientTape() as tape:
      rows = layer.table.lookup(keys)
      loss = -tf.reduce_sum(rows[:, 0] * tf.cast(keys, tf.float32))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  def dataset_fn(context):
    return tf.data.Dataset.range(1, 4001).batch(20).repeat()

  deltas = tfps.serving.Deltas(tmp_path, _NEVER)
  deltas.start(model)
  reader = tfps.serving.DeltaReader(tmp_path)
  seen = []

  def check(progress):
    deltas.write()
    reader.refresh()
    for shard in range(2):
      rows, keys, counts = (
        next(v for v in reader.model.variables if f'{what}_{shard}' in v.name)
        for what in ('rows', 'keys', 'counts')
      )
      used = int(counts[0])
      keys, rows = keys.numpy()[1024:used], rows.numpy()[1024:used, 0]
      assert len(np.unique(keys)) == len(keys)
      assert (keys > 0).all()
      # Each row has been trained on its key, some number of times.
      np.testing.assert_array_equal(rows % keys, 0)
      seen.append(len(keys))

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(
      step, dataset_fn, steps=60, steps_per_execution=4, hooks=[check]
    )
  deltas.stop()
  reader.refresh()
  assert seen[-1] > seen[0]
  keys = tf.range(1, 1001, dtype=tf.int64)
  np.testing.assert_array_equal(
    reader(keys), layer.table.lookup(keys, training=False)
  )
  strategy.close()


def test_a_model_without_variables_yet_starts_with_its_first_batch(tmp_path):
  model = keras.Sequential([keras.layers.Dense(1)])
  model.compile('sgd', 'mse')
  deltas = tfps.serving.Deltas(tmp_path, _NEVER)
  model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0, callbacks=[deltas])
  served = tfps.serving.DeltaReader(tmp_path)
  np.testing.assert_allclose(
    served(np.ones([3, 2], 'f')), model.predict(np.ones([3, 2]), verbose=0)
  )


class _Interrupts(keras.callbacks.Callback):
  def on_train_batch_end(self, batch, logs=None):
    raise KeyboardInterrupt


@pytest.fixture
def threads():
  """Returns the threads of writers that the test has started."""

  def running():
    return {t for t in threading.enumerate() if t.name == 'tfps-deltas'}

  before = running()
  return lambda: running() - before


def _scope(tfps_cluster, is_alone):
  if is_alone:
    return contextlib.nullcontext()
  return tfps.ParameterServerStrategy(tfps_cluster.cluster).scope()


@pytest.mark.parametrize('is_alone', [True, False])
def test_an_interrupted_fit_leaves_no_writer(
  tfps_cluster, tmp_path, threads, is_alone
):
  with _scope(tfps_cluster, is_alone):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
  data = np.ones([8, 2]), np.ones([8, 1])
  deltas = tfps.serving.Deltas(tmp_path, 0.01)
  with pytest.raises(KeyboardInterrupt):
    model.fit(*data, verbose=0, callbacks=[deltas, _Interrupts()])
  assert not threads()
  model.fit(*data, verbose=0, callbacks=[deltas])
  assert not threads()
  served = tfps.serving.DeltaReader(tmp_path)
  assert served.version.base == 1
  ones = np.ones([3, 2], 'f')
  np.testing.assert_allclose(served(ones), model.predict(ones, verbose=0))


def test_a_directory_has_one_writer(tmp_path, threads):
  model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
  folders = [tmp_path / 'own', tmp_path / 'own' / '..' / 'own']
  first, second = (tfps.serving.Deltas(each, _NEVER) for each in folders)
  first.start(model)
  second.start(model)
  assert len(threads()) == 1
  model.layers[0].bias.assign([1.0])
  assert first.write() == 0
  first.stop()
  assert second.write() > 0
  model.layers[0].bias.assign([2.0])
  first.start(model)  # is the one now
  assert second.write() == 0
  first.stop()
  second.stop()
  served = tfps.serving.DeltaReader(tmp_path / 'own')
  assert served.version == (3, 0)
  assert not threads()


def test_drafts_of_two_writers_have_names_of_their_own(tmp_path):
  one, other = folder.Folder(tmp_path), folder.Folder(tmp_path)
  with one.draft('delta') as path:
    path.write_bytes(b'of one')
    with other.draft('delta') as another:
      another.write_bytes(b'of the other')
    assert path.read_bytes() == b'of one'
