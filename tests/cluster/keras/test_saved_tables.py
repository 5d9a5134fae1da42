"""Tables that grow are saved and restored with all keys, rows and slots."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import saved_models
from tests.support import turns
import tfps
from tfps import testing

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1600)
_X = _IDS[np.r_[np.arange(1600), np.arange(400)]]
_Y = (np.arange(2000) % 5).astype('f')[:, None]


def _model():
  inputs = keras.Input((), dtype='int64')
  layer = tfps.embeddings.Embedding(3, num_shards=2, name='keyed')
  outputs = keras.layers.Dense(1, kernel_initializer='ones')(layer(inputs))
  model = keras.Model(inputs, outputs)
  model.compile(keras.optimizers.Adam(0.05), 'mse', steps_per_execution=5)
  return model


def _fit(model):
  model.fit(_X, _Y, batch_size=200, shuffle=False, verbose=0)
  return model.predict(_X, batch_size=500, verbose=0)


@pytest.mark.parametrize(
  'save',
  turns.rarely(
    [
      saved_models.as_keras,
      saved_models.as_weights,
      saved_models.as_checkpoint,
    ],
    but=[saved_models.as_keras],
  ),
)
def test_training_goes_on_as_if_nothing_had_happened(
  tfps_cluster, tmp_path, save
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    keras.utils.set_random_seed(1)
    model = _model()
    first = _fit(model)
    load = save(model, tmp_path, _model)
    second = _fit(model)
  strategy.close()

  with testing.InProcessCluster(1, 3) as cluster:
    strategy = tfps.ParameterServerStrategy(cluster.cluster)
    with strategy.scope():
      loaded = load()
      table = loaded.get_layer('keyed').table
      np.testing.assert_allclose(
        loaded.predict(_X, batch_size=500, verbose=0), first, rtol=1e-5
      )
      assert table.num_keys() == 1600
      np.testing.assert_allclose(_fit(loaded), second, rtol=1e-4)
      assert table.num_keys() == 1600
    strategy.close()


@pytest.mark.exhaustive
def test_a_saved_table_is_loaded_without_a_strategy(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model()
    expected = _fit(model)
    load = saved_models.as_keras(model, tmp_path, _model)
  strategy.close()
  np.testing.assert_allclose(
    load().predict(_X, batch_size=500, verbose=0), expected, rtol=1e-5
  )


def test_an_export_serves_what_the_model_predicts(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model()
    _fit(model)
    expected = model.predict(np.r_[_X[:50], 7], verbose=0)
    model.export(tmp_path, verbose=False)
  strategy.close()
  # No other process could run what names this cluster's tasks.
  assert b'/job:' not in (tmp_path / 'saved_model.pb').read_bytes()
  served = tf.saved_model.load(tmp_path)
  np.testing.assert_allclose(
    served.serve(tf.constant(np.r_[_X[:50], 7])), expected, rtol=1e-5
  )


def test_a_saved_module_with_its_optimizer_is_loaded(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model()
    _fit(model)
  keys = np.r_[_X[:50], 7]
  expected = model.predict(keys, verbose=0)
  module = tf.Module()
  module.model = model
  module.served = tf.function(
    lambda keys: model(keys, training=False),
    input_signature=[tf.TensorSpec([None], tf.int64)],
  )
  tf.saved_model.save(module, tmp_path)
  strategy.close()
  loaded = tf.saved_model.load(tmp_path)
  np.testing.assert_allclose(
    loaded.served(tf.constant(keys)), expected, rtol=1e-5
  )


@pytest.mark.parametrize(
  ('kind', 'written_by'),
  turns.rarely(
    [
      (tfps.ParameterServerStrategy, 'chief'),
      (tfps.ParameterServerStrategy, 'ps'),
      (tfps.BetweenGraphStrategy, 'chief'),
    ],
    but=[(tfps.ParameterServerStrategy, 'ps')],
  ),
)
def test_a_new_run_begins_with_the_last_snapshot(
  tfps_cluster, tmp_path, kind, written_by
):
  def strategy_of(cluster):
    recovery = tfps.Recovery(tmp_path, every_secs=3600, written_by=written_by)
    return kind(cluster, recovery=recovery)

  keras.utils.clear_session()  # as in each run, names are counted from 0 on
  keras.utils.set_random_seed(1)
  strategy = strategy_of(tfps_cluster.cluster)
  with strategy.scope():
    model = _model()
    first = _fit(model)
    strategy.guard.copies.keep()
    second = _fit(model)
  strategy.close()
  keras.utils.clear_session()
  with testing.InProcessCluster(1, 3) as cluster:
    strategy = strategy_of(cluster.cluster)
    with strategy.scope():
      model = _model()
      model.optimizer.build(model.trainable_variables)
      predicted = model.predict(_X, batch_size=500, verbose=0)
      np.testing.assert_allclose(predicted, first, rtol=1e-5)
      assert model.get_layer('keyed').table.num_keys() == 1600
      np.testing.assert_allclose(_fit(model), second, rtol=1e-4)
    strategy.close()


@contextlib.contextmanager
def _table(cluster, directory, **options):
  keras.utils.clear_session()  # as in each run, names are counted from 0 on
  recovery = tfps.Recovery(directory, every_secs=3600)
  strategy = tfps.ParameterServerStrategy(cluster, recovery=recovery)
  try:
    with strategy.scope():
      table = tfps.embeddings.Table(2, name='grown', **options)
      table.build()
      yield table, strategy.guard
  finally:
    strategy.close()


def test_a_run_on_the_same_ps_begins_anew_although_tables_have_grown(
  tfps_cluster, tmp_path
):
  with _table(tfps_cluster.cluster, tmp_path) as (table, guard):
    found = table.lookup(_IDS[:3], training=True)
    guard.copies.keep()
  with _table(tfps_cluster.cluster, tmp_path) as (table, _):
    np.testing.assert_array_equal(table.lookup(_IDS[:3]), found)
    assert table.num_keys() == 3
  eviction = tfps.embeddings.Lru(10)
  for num_shards in (1, 2):
    with (
      pytest.raises(
        tfps.CheckpointError,
        match=r'cannot be restored: grown/.* no scores, .* Make it with the',
      ),
      _table(
        tfps_cluster.cluster, tmp_path, num_shards=num_shards, eviction=eviction
      ),
    ):
      pass


@pytest.mark.exhaustive
def test_a_snapshot_of_a_table_that_evicts_is_restored_without_evicted_keys(
  tfps_cluster, tmp_path
):
  eviction = tfps.embeddings.Lru(40)
  with _table(tfps_cluster.cluster, tmp_path, eviction=eviction) as (
    one,
    guard,
  ):
    for ids in np.split(_IDS[:400], 20):
      one.lookup(ids, training=True)
    kept = {key: row.tolist() for key, row in _items(one)}
    guard.copies.keep()
  assert 0 < len(kept) < 100
  with _table(tfps_cluster.cluster, tmp_path) as (other, _):
    assert {key: row.tolist() for key, row in _items(other)} == kept
    assert other.num_keys() == len(kept)


@pytest.mark.exhaustive
def test_a_snapshot_is_restored_under_an_eviction_with_other_scores(
  tfps_cluster, tmp_path
):
  evictions = tfps.embeddings.Lfu(1000), tfps.embeddings.Ttl(secs=1e6)
  for eviction in evictions:
    with _table(tfps_cluster.cluster, tmp_path, eviction=eviction) as (
      table,
      guard,
    ):
      for ids in np.split(_IDS[:400], 2):
        table.lookup(ids, training=True)
      assert (table.num_keys(), table.num_evicted()) == (400, 0)
      guard.copies.keep()


def _checkpointed(table, path):
  saved = tf.train.Checkpoint(table=table).write(path)
  return lambda other: tf.train.Checkpoint(table=other).read(saved)


def _stored(table, path):
  del path
  table.save_own_variables(store := {})
  return lambda other: other.load_own_variables(store)


@pytest.mark.parametrize(
  'save', turns.rarely([_checkpointed, _stored], but=[_checkpointed])
)
def test_a_file_is_restored_under_an_eviction_with_other_scores(tmp_path, save):
  evictions = [
    tfps.embeddings.Lfu(1000),
    tfps.embeddings.Ttl(secs=1e6),
    tfps.embeddings.Ttl(steps=3),
  ]
  tables = [tfps.embeddings.Table(2, eviction=each) for each in evictions]
  for table in tables:
    table.build()
  one, by_time, by_number = tables
  one.lookup(_IDS[:400], training=True)
  load = save(one, tmp_path / 'saved')
  load(by_time)
  load(by_number)
  for _ in range(5):
    for table in (by_time, by_number):
      table.lookup(_IDS[:1], training=True)
  assert [by_time.num_keys(), by_number.num_keys()] == [400, 1]


def _items(table):
  for keys, rows in table.items():
    yield from zip(keys.tolist(), rows, strict=True)


def _update(table, optimizer, ids):
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(table.lookup(ids) ** 2)
  weights = table.trainable_weights
  optimizer.apply(tape.gradient(loss, weights), weights)


def test_a_checkpoint_of_other_policies_is_restored_by_key_or_refused(tmp_path):
  tables, optimizers, checkpoints = [], [], []
  for eviction in (tfps.embeddings.Lru(40), None):
    table = tfps.embeddings.Table(2, 'normal', name='grown', eviction=eviction)
    table.build()
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(table.trainable_weights)
    for ids in np.split(_IDS[:400], 20):
      _update(table, optimizer, ids)
    tables.append(table)
    optimizers.append(optimizer)
    checkpoints.append(tf.train.Checkpoint(table=table, optimizer=optimizer))
  evicting, plain = tables
  kept = dict(_items(evicting))
  saved = [each.save(tmp_path / str(i)) for i, each in enumerate(checkpoints)]
  with pytest.raises(ValueError, match='no scores, which this one needs'):
    checkpoints[0].restore(saved[1])
  for each in checkpoints:
    each.restore(saved[0])
  ids = np.array(list(kept)[:20])
  for table, optimizer in zip(tables, optimizers, strict=True):
    assert dict(_items(table)).keys() == kept.keys()
    _update(table, optimizer, ids)  # by slots that have followed their keys
  np.testing.assert_array_equal(evicting.lookup(ids), plain.lookup(ids))
