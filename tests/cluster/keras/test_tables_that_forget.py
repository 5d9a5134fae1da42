"""Tables that admit keys and evict them, while workers train."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import kinds
from tests.support import table_contents
from tests.support import turns
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_HOT = np.array([3, -(2**62), 2**62, 5])
_NEW, _CAPACITY = 20, 30


def _with_new_keys(context):
  """Each step has the hot keys, and some that no other step has."""
  first = (context.input_pipeline_id + 1) << 32
  new = tf.data.Dataset.counter(first).batch(_NEW)
  return new.map(lambda keys: tf.concat([_HOT, keys], axis=0))


@pytest.mark.parametrize(
  'name',
  turns.rarely(
    list(kinds.STRATEGIES),
    but=['hybrid'],
  ),
)
def test_each_look_up_of_a_key_that_has_a_row_is_in_one_update(
  tfps_cluster, name
):
  is_alone = name in kinds.ALONE
  with tfps.testing.InProcessCluster(1, 2) as one:
    cluster = one.cluster if is_alone else tfps_cluster.cluster
    strategy = kinds.STRATEGIES[name](cluster)
    with strategy.scope():
      admitting = tfps.embeddings.Table(
        2, 'zeros', admission=tfps.embeddings.Counter(3), name='admitting'
      )
      evicting = tfps.embeddings.Table(
        2, 'zeros', eviction=tfps.embeddings.Lru(_CAPACITY), name='evicting'
      )
    tables = [admitting, evicting]
    optimizer = kinds.train_sums(strategy, tables, _with_new_keys, 20)
    updates = int(optimizer.iterations.numpy())
    assert updates >= 10
    learned = -admitting.lookup(_HOT, training=False).numpy()
    assert admitting.num_keys() == len(_HOT)
    joins = name in ('sync', 'in graph', 'accumulated')
    if joins:  # several look-ups in an update, and some may be of rows
      assert ((updates - 3 <= learned) & (learned < updates)).all()
    else:
      np.testing.assert_array_equal(learned, np.full([4, 2], updates - 2))

    np.testing.assert_array_equal(
      evicting.lookup(_HOT, training=False), np.full([4, 2], -updates)
    )
    present, rows = _contents(evicting)
    is_hot = np.isin(present, _HOT)
    assert is_hot.sum() == 4
    assert len(np.unique(present)) == len(present) == evicting.num_keys()
    # Those of two look-ups at once, at most.
    assert len(present) <= _CAPACITY + 2 * (len(_HOT) + _NEW)
    number = len(present) - 4 + evicting.num_evicted()
    assert number % _NEW == 0
    assert number >= updates * _NEW
    # Each has learned for itself alone, even in a row that another has had.
    learned = -rows[~is_hot, 0]
    assert (learned <= 1).all() if joins else (learned == 1).all()
    strategy.close()


def _contents(table):
  """Returns all keys that have a row, and their rows."""
  keys, rows = zip(*table.items(), strict=True)
  return np.concatenate(keys), np.concatenate(rows)


_POLICIES = [
  (tfps.embeddings.Counter(2), tfps.embeddings.Lfu(50)),
  (tfps.embeddings.BloomCounter(2, 0.001, 5000), tfps.embeddings.Ttl(steps=9)),
  (tfps.embeddings.Probability(0.5), tfps.embeddings.Ttl(3600.0)),
  (None, tfps.embeddings.Lru(50)),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(('admission', 'eviction'), _POLICIES)
def test_a_model_is_saved_with_its_policies_and_what_they_have_counted(
  tfps_cluster, tmp_path, admission, eviction
):
  ids = np.random.default_rng(0).zipf(1.3, [40, 16]) % 2000
  clicks = (ids % 3 == 0).astype('f')[..., None]
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    inputs = keras.Input((), dtype='int64')
    layer = tfps.embeddings.Embedding(
      4, admission=admission, eviction=eviction, name='ids'
    )
    outputs = keras.layers.Dense(1, 'sigmoid')(layer(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(
      keras.optimizers.Adagrad(0.3),
      'binary_crossentropy',
      steps_per_execution=4,
    )
    history = model.fit(
      ids.reshape(-1), clicks.reshape(-1, 1), batch_size=16, epochs=4, verbose=0
    )
    losses = history.history['loss']
    assert losses[-1] < losses[0]
    model.save(tmp_path / 'model.keras')
    expected = model.predict(ids[0], verbose=0)
    contents = table_contents.of(model)
    counted = table_contents.counted(layer.table)
  strategy.close()

  loaded = keras.models.load_model(tmp_path / 'model.keras')
  table, before = loaded.get_layer('ids').table, layer.table
  assert (table.admission, table.eviction) == (admission, eviction)
  np.testing.assert_allclose(loaded.predict(ids[0], verbose=0), expected, 1e-5)
  assert table.num_keys() == before.num_keys() > 0
  assert table.num_evicted() == before.num_evicted()
  assert table_contents.of(loaded) == contents
  assert table_contents.counted(table) == counted
  by_key, cells = counted
  assert bool(by_key) == isinstance(admission, tfps.embeddings.Counter)
  assert any(cells) == isinstance(admission, tfps.embeddings.BloomCounter)
  loaded.fit(ids.reshape(-1), clicks.reshape(-1, 1), batch_size=16, verbose=0)
  if isinstance(eviction, tfps.embeddings.Ttl):
    return
  assert table.num_evicted() > 0
  assert table.num_keys() <= 50 + 16


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      {'admission': tfps.embeddings.Lru(3)},
      r'admission=Lru\(capacity=3\), but it is one of Counter, BloomCounter',
    ),
    ({'eviction': 'lru'}, "eviction='lru', but it is one of Ttl, Lru, Lfu"),
  ],
)
def test_other_policies_are_refused(arguments, message):
  with pytest.raises(TypeError, match=message):
    tfps.embeddings.Embedding(2, **arguments)
