"""Tables of which most rows are in files are as those in memory."""

import contextlib
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import kinds
from tests.support import saved_models
from tests.support import stored_tables
from tests.support import table_contents
from tests.support import turns
import tfps
from tfps import testing
from tfps.recovery import frozen_rows
from tfps.server import row_store
from tfps.testing.chaos import disks

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_optimizers = keras.optimizers
# Each with its number of slots, and the policies of the table.
_CASES = {
  'SGD': (lambda: _optimizers.SGD(0.1), 0, {}),
  'Adagrad': (lambda: _optimizers.Adagrad(0.1), 1, {}),
  'Adam': (lambda: _optimizers.Adam(0.01), 2, {}),
  'evicting': (
    lambda: _optimizers.Adagrad(0.1),
    1,
    {'eviction': tfps.embeddings.Ttl(steps=7)},
  ),
  'admitting': (
    lambda: _optimizers.Adam(0.01),
    2,
    {'admission': tfps.embeddings.Counter(2)},
  ),
}
_KINDS = {
  'coordinator': kinds.STRATEGIES['coordinator'],
  'between graphs': kinds.STRATEGIES['between graphs'],
  'alone': None,
}


@contextlib.contextmanager
def _scope(kind, *, num_ps=2, **arguments):
  """Scope of a strategy with one worker, or of none, as in a new program."""
  keras.utils.clear_session()  # so that names are counted from 0 on
  if kind is None:
    yield
    return
  with testing.InProcessCluster(1, num_ps) as cluster:
    strategy = kind(cluster.cluster, **arguments)
    with strategy.scope():
      yield
    strategy.close()


def _trained(storage, make_optimizer, policies):
  keras.utils.set_random_seed(1)
  model = stored_tables.model(make_optimizer(), storage=storage, **policies)
  predicted = [stored_tables.fit(model) for _ in range(2)]
  contents = table_contents.of(model)['keyed']
  for values in contents.values():
    values.pop('score', None)  # which has the time
  return predicted, contents, model.get_layer('keyed').table


@pytest.mark.exhaustive
@pytest.mark.parametrize('case', _CASES.values(), ids=_CASES)
@pytest.mark.parametrize('kind', _KINDS.values(), ids=_KINDS)
def test_training_is_that_in_memory_to_the_last_bit(tmp_path, kind, case):
  make_optimizer, num_slots, policies = case
  storage = stored_tables.storage(tmp_path, num_slots)
  with _scope(kind):
    expected, contents, _ = _trained(None, make_optimizer, policies)
  with _scope(kind):
    actual, stored, table = _trained(storage, make_optimizer, policies)
    found = stored_tables.counts(table)
  np.testing.assert_array_equal(actual, expected)
  assert stored == contents
  for counts in found:
    assert counts.memory_bytes <= storage.memory_bytes / len(found)
    assert counts.moved_out > counts.moved_in > 100
  assert not list(tmp_path.iterdir())


def _batches(context):
  """Each step has many of the keys, others than the step before."""
  random = tf.data.Dataset.random(seed=context.input_pipeline_id)
  keys = random.map(lambda number: tf.cast(number % 500, tf.int64))
  return keys.batch(100)


@pytest.mark.parametrize(
  'name',
  turns.rarely(
    [name for name in kinds.STRATEGIES if name not in kinds.ALONE],
    but=['coordinator'],
  ),
)
def test_no_update_is_lost_or_doubled_while_rows_move(
  tfps_cluster, tmp_path, name
):
  strategy = kinds.STRATEGIES[name](tfps_cluster.cluster)
  storage = tfps.embeddings.Storage(50 * 2 * 4, str(tmp_path))
  with strategy.scope():
    stored = tfps.embeddings.Table(2, 'zeros', storage=storage, name='stored')
    plain = tfps.embeddings.Table(2, 'zeros', name='plain')
  kinds.train_sums(strategy, [stored, plain], _batches, 40)
  keys = np.arange(500)
  expected = plain.lookup(keys, training=False)
  assert -np.sum(expected) >= 40 * 100
  np.testing.assert_array_equal(stored.lookup(keys, training=False), expected)
  assert sum(c.moved_in for c in stored_tables.counts(stored)) > 100
  strategy.close()


_SAVED = {
  'file of Keras': saved_models.as_keras,
  'weights': saved_models.as_weights,
  'checkpoint': saved_models.as_checkpoint,
  'slots to come': saved_models.as_checkpoint_of_slots_to_come,
}
_LOADED = {
  'stored alike': (True, 2),
  'in other shards': (True, 3),
  'in memory': (False, 2),
  'in memory, in other shards': (False, 3),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize('save', _SAVED.values(), ids=_SAVED)
@pytest.mark.parametrize(
  ('is_stored', 'num_shards'), _LOADED.values(), ids=_LOADED
)
def test_saved_tables_go_on_with_and_without_storage(
  tmp_path, is_stored, num_shards, save
):
  storage = stored_tables.storage(tmp_path / 'rows', 1)
  kind = kinds.STRATEGIES['coordinator']

  def make():
    return stored_tables.model(
      keras.optimizers.Adagrad(0.1),
      num_shards=num_shards,
      storage=storage if is_stored else None,
    )

  with _scope(kind):
    keras.utils.set_random_seed(1)
    model = stored_tables.model(keras.optimizers.Adagrad(0.1), storage=storage)
    stored_tables.fit(model)
    load = save(model, tmp_path, make)
    stored_tables.fit(model)
    expected = table_contents.of(model)
  with _scope(kind, num_ps=3):
    loaded = load()
    stored_tables.fit(loaded)
    table_contents.assert_near(table_contents.of(loaded), expected)


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize(
  ('num_ps', 'written_by'),
  [(2, 'chief'), (2, 'ps'), (3, 'chief'), (3, 'ps')],
)
def test_a_new_run_begins_with_a_snapshot(
  tfps_cluster, tmp_path, monkeypatch, num_ps, written_by
):
  # Each slice of a file has so few rows.
  monkeypatch.setattr(frozen_rows, 'SLICE_BYTES', 1100 * 4 * 4)
  storage = stored_tables.storage(tmp_path / 'rows', 1)

  def begin(cluster):
    keras.utils.clear_session()  # as in each run, names are counted from 0 on
    return tfps.ParameterServerStrategy(
      cluster,
      recovery=tfps.Recovery(
        tmp_path / 'cuts', every_secs=3600, written_by=written_by
      ),
    )

  def make():
    model = stored_tables.model(
      keras.optimizers.Adagrad(0.1), num_shards=None, storage=storage
    )
    model.optimizer.build(model.trainable_variables)
    return model

  keras.utils.set_random_seed(1)
  strategy = begin(tfps_cluster.cluster)
  with strategy.scope():
    model = make()
    stored_tables.fit(model)
    strategy.guard.copies.keep()
    stored_tables.fit(model)
    expected = table_contents.of(model)
  strategy.close()
  with testing.InProcessCluster(1, num_ps) as cluster:
    strategy = begin(cluster.cluster)
    with strategy.scope():
      model = make()
      stored_tables.fit(model)
      table_contents.assert_near(table_contents.of(model), expected)
    strategy.close()


@pytest.mark.parametrize('num_frozen', [0, 1, 3])
def test_a_snapshot_that_fails_keeps_no_copies_of_rows(
  tfps_cluster, tmp_path, num_frozen
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path / 'snapshots')
  )
  storage = tfps.embeddings.Storage(1 << 12, str(tmp_path))
  with strategy.scope():
    tables = [
      tfps.embeddings.Table(
        2, 'zeros', num_shards=2, storage=storage, name=name
      )
      for name in ('one', 'other')
    ]
    for table in tables:
      table.build()
  stores = []
  freeze = row_store.RowStore.freeze

  def freeze_or_fail(store):
    if len(stores) == num_frozen:
      raise ValueError('The disk is full.')
    stores.append(store)
    return freeze(store)

  snapshotter = strategy.guard.snapshotter
  with (
    mock.patch.object(row_store.RowStore, 'freeze', freeze_or_fail),
    pytest.raises(tf.errors.OpError, match='The disk is full'),
  ):
    snapshotter.save()
  assert len(stores) == num_frozen
  assert not any(store.is_frozen for store in stores)
  snapshotter.save()
  strategy.close()
  del tables


def test_a_directory_that_no_ps_can_use_is_named(tfps_cluster, tmp_path):
  (tmp_path / 'file').touch()
  storage = tfps.embeddings.Storage(1000, str(tmp_path / 'file' / 'rows'))
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    tables = [
      tfps.embeddings.Table(2, storage=storage, name='kept'),
      tfps.embeddings.Embedding(2, storage=storage, name='kept'),
    ]
    for table in tables:
      with pytest.raises(ValueError, match=f'kept on ps:0 .* {tmp_path}/file/'):
        table.build()
  strategy.close()


@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
def test_a_disk_that_is_full_ends_training_with_its_name(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with disks.small_disk(2**20) as folder, strategy.scope():
    storage = tfps.embeddings.Storage(1000, str(folder))
    table = tfps.embeddings.Table(2, storage=storage, name='kept')
    table.build()
    with (
      disks.full_disk(folder),
      pytest.raises(
        tf.errors.InvalidArgumentError, match=f'kept on ps:. .* in {folder}, '
      ),
    ):
      table.lookup(np.arange(10_000), training=True)
    assert table.num_keys() == 0
    with pytest.raises(tf.errors.InvalidArgumentError):
      table.lookup(np.arange(1_000_000), training=True)
    table.lookup(np.arange(10_000), training=True)  # for which there is room
    assert table.num_keys() == 10_000
  strategy.close()


def test_a_step_cannot_read_all_rows(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    storage = tfps.embeddings.Storage(1000, str(tmp_path))
    table = tfps.embeddings.Table(2, storage=storage, name='kept')
    table.build()

  def step(keys):
    return tf.reduce_sum(table.rows_0.value) + tf.reduce_sum(keys)

  with (
    tfps.Coordinator(strategy, timeout_secs=60) as coordinator,
    pytest.raises(ValueError, match='Look rows up by their keys'),
  ):
    coordinator.train(
      step, lambda _: tf.data.Dataset.from_tensors([1.0]).repeat(), steps=2
    )
  strategy.close()


def test_replicas_are_refused(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path, replicas=1)
  )
  with strategy.scope():
    table = tfps.embeddings.Table(
      2, storage=tfps.embeddings.Storage(1000, str(tmp_path)), name='kept'
    )
    with pytest.raises(ValueError, match=r'kept: Storage.*replicas=1'):
      table.build()
  strategy.close()


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'memory_bytes': 0, 'directory': '/tmp'}, 'memory_bytes is positive'),
    ({'memory_bytes': 1.5, 'directory': '/tmp'}, 'is a whole number'),
    ({'memory_bytes': 1, 'directory': ''}, 'directory names one'),
  ],
)
def test_what_is_wrong_is_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    tfps.embeddings.Storage(**arguments)


@pytest.mark.exhaustive
def test_base_and_deltas_for_serving_have_all_rows(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    storage = stored_tables.storage(tmp_path / 'rows', 1)
    model = stored_tables.model(keras.optimizers.Adagrad(), storage=storage)
    stored_tables.fit(model)
    deltas = tfps.serving.Deltas(tmp_path / 'deltas', 1e6)
    deltas.start(model)
    expected = stored_tables.fit(model)
    assert deltas.write() > 0
  strategy.close()
  reader = tfps.serving.DeltaReader(tmp_path / 'deltas')
  predicted = reader(tf.constant(stored_tables.KEYS))
  np.testing.assert_allclose(predicted, expected, rtol=1e-6)
