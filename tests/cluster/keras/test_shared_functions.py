"""Functions of tables that are traced once for all similar ones and all ps."""

import collections

import keras
import numpy as np
import pytest

from tests.support import saved_models
from tests.support import table_contents
import tfps
from tfps import testing
from tfps.updates.tables import admission
from tfps.updates.tables import resharding
from tfps.updates.tables import sharing

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=3)

_X = np.arange(300) * 7919
_Y = (np.arange(300) % 5).astype('f')[:, None]


def _model(**policies):
  inputs = keras.Input((), dtype='int64')
  embeddings = [tfps.embeddings.Embedding(2, **policies) for _ in range(2)]
  both = keras.layers.Concatenate()([each(inputs) for each in embeddings])
  model = keras.Model(inputs, keras.layers.Dense(1)(both))
  model.compile('adam', 'mse', steps_per_execution=2)
  return model


def _fit(model):
  model.fit(_X, _Y, batch_size=100, verbose=0)


def _saved(cluster, path):
  """What tables of a trained model have, and a function that loads it."""
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    model = _model()
    _fit(model)
    wanted = table_contents.of(model)
    load = saved_models.as_keras(model, path, _model)
  strategy.close()
  return wanted, load


@pytest.mark.exhaustive
def test_a_key_without_a_row_has_one_branch_for_all(tfps_cluster, monkeypatch):
  traced, admits = [], admission.Probability.admits

  def noting(self, shard, keys):
    traced.append(self)
    return admits(self, shard, keys)

  monkeypatch.setattr(admission.Probability, 'admits', noting)
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _model(admission=tfps.embeddings.Probability(1.0))
    _fit(model)
  assert len(traced) == 1
  tables = [layer.table for layer in model.layers if hasattr(layer, 'table')]
  assert [table.num_keys() for table in tables] == [300] * 2
  strategy.close()


@pytest.mark.exhaustive
def test_what_restores_one_table_restores_all(tfps_cluster, tmp_path):
  wanted, load = _saved(tfps_cluster.cluster, tmp_path)
  with testing.InProcessCluster(1, 2) as cluster:
    strategy = tfps.ParameterServerStrategy(cluster.cluster)
    with strategy.scope():
      loaded = load()
      traced = collections.Counter(
        body for body, *_ in list(sharing.in_use()) if callable(body)
      )
      found = table_contents.of(loaded)
    strategy.close()
  assert found == wanted
  assert traced == dict.fromkeys(
    (resharding._clear, resharding._put_rows, resharding._put_slot), 1
  )


@pytest.mark.exhaustive
def test_what_is_restored_is_in_replicas_too(tfps_cluster, tmp_path):
  with testing.InProcessCluster(1, 2) as cluster:
    wanted, load = _saved(cluster.cluster, tmp_path)
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(tmp_path / 'snapshots', replicas=1, every_secs=3600),
  )
  with strategy.scope():
    loaded = load()
    assert table_contents.of(loaded) == wanted
    pairs = list(strategy.guard.copies.replicas.pairs())
    restored = [v for v in loaded.variables if 'table' in v.path]
    assert len(pairs) >= len(restored)
    for variable, twin in pairs:
      np.testing.assert_array_equal(variable.numpy(), twin.numpy())
  strategy.close()
