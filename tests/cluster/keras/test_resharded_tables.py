"""Tables that are restored on another number of ps, or on none."""

import contextlib

import keras
import numpy as np
import pytest

from tests.support import saved_models
from tests.support import table_contents
import tfps
from tfps import testing

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=3)

_IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 400)
_X = {'users': _IDS[np.r_[np.arange(400), np.arange(200)]]}
_X['items'] = _X['users'][::-1] // 2
_Y = (np.arange(600) % 5).astype('f')[:, None]


def _model(optimizer='adam', **policies):
  """A model with two tables, before and after which are other weights."""
  users, items = (keras.Input((), dtype='int64', name=name) for name in _X)
  some = tfps.embeddings.Embedding(3, name='some', **policies)(users)
  some = keras.layers.Dense(2, kernel_initializer='ones')(some)
  all_ = tfps.embeddings.Embedding(2, name='all')(items)
  both = keras.layers.Concatenate()([some, all_])
  outputs = keras.layers.Dense(1, kernel_initializer='ones')(both)
  model = keras.Model([users, items], outputs)
  optimizer = keras.optimizers.get(optimizer)
  optimizer.learning_rate = 0.05
  model.compile(optimizer, 'mse', steps_per_execution=3)
  return model


def _fit(model):
  model.fit(_X, _Y, batch_size=100, shuffle=False, verbose=0)
  others = [w.numpy().ravel() for w in model.weights if 'dense' in w.path]
  return table_contents.of(model), np.concatenate(others)


@contextlib.contextmanager
def _scope(num_ps, kind=tfps.ParameterServerStrategy, **recovery):
  """Scope of a strategy with so many ps, or of none."""
  if not num_ps:
    yield
    return
  with testing.InProcessCluster(1, num_ps) as cluster:
    strategy = kind(cluster.cluster, **recovery)
    with strategy.scope():
      yield
    strategy.close()


def _check_goes_on(cluster, path, save, make, numbers):
  """Saves on 3 ps, and trains on where other numbers of ps have loaded it."""
  keras.utils.set_random_seed(1)
  strategy = tfps.ParameterServerStrategy(cluster.cluster)
  with strategy.scope():
    model = make()
    first = _fit(model)[0]
    load = save(model, path, make)
    second = _fit(model)
  strategy.close()
  for num_ps in numbers:
    keras.utils.clear_session()
    with _scope(num_ps):
      loaded = load()
      assert table_contents.of(loaded) == first
      tables, others = _fit(loaded)
      table_contents.assert_near(tables, second[0])
      np.testing.assert_allclose(others, second[1], rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('save', 'numbers'),
  [
    (saved_models.as_keras, (2,)),
    (saved_models.as_keras, (5,)),
    (saved_models.as_weights, (2, None)),
    (saved_models.as_checkpoint, (None,)),
    (saved_models.as_checkpoint, (1,)),
    (saved_models.as_checkpoint_of_slots_to_come, (2, 5)),
  ],
)
def test_training_goes_on_with_each_keys_row_and_slots(
  tfps_cluster, tmp_path, save, numbers
):
  _check_goes_on(tfps_cluster, tmp_path, save, _model, numbers)


_POLICIES = {
  'admission': tfps.embeddings.Counter(2),
  'eviction': tfps.embeddings.Ttl(steps=1000),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('optimizer', 'policies'),
  [
    ('adagrad', _POLICIES),
    ('ftrl', {}),
    pytest.param(lambda: keras.optimizers.SGD(momentum=0.9), {}, id='momentum'),
    ('sgd', {}),
  ],
)
def test_each_optimizer_goes_on(tfps_cluster, tmp_path, optimizer, policies):
  def make():
    made = optimizer() if callable(optimizer) else optimizer
    return _model(made, **policies)

  _check_goes_on(tfps_cluster, tmp_path, saved_models.as_checkpoint, make, (2,))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('kind', 'written_by', 'num_ps', 'policies'),
  [
    (tfps.ParameterServerStrategy, 'chief', 2, {}),
    (tfps.ParameterServerStrategy, 'ps', 5, _POLICIES),
    (tfps.BetweenGraphStrategy, 'ps', 1, {}),
  ],
)
def test_a_new_run_begins_with_a_snapshot_of_other_shards(
  tfps_cluster, tmp_path, kind, written_by, num_ps, policies
):
  recovery = tfps.Recovery(tmp_path, every_secs=3600, written_by=written_by)
  keras.utils.clear_session()  # as in each run, names are counted from 0 on
  keras.utils.set_random_seed(1)
  strategy = kind(tfps_cluster.cluster, recovery=recovery)
  with strategy.scope():
    model = _model(**policies)
    first = _fit(model)[0]
    strategy.guard.copies.keep()
    second = _fit(model)
  strategy.close()
  keras.utils.clear_session()
  with _scope(num_ps, kind, recovery=recovery):
    model = _model(**policies)
    model.optimizer.build(model.trainable_variables)
    assert table_contents.of(model) == first
    tables, others = _fit(model)
    table_contents.assert_near(tables, second[0])
    np.testing.assert_allclose(others, second[1], rtol=1e-5)
