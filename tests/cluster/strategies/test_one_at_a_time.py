"""A process uses one strategy at a time, the latest, until it is closed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import testing

_X = np.ones([8, 4], 'f')

_KINDS = [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]


def _trained(strategy):
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
  model.fit(_X, _X[:, :1], verbose=0)
  return model


@pytest.mark.parametrize(
  ('strategy_class', 'method'),
  turns.rarely(
    [(kind, method) for kind in _KINDS for method in ('fit', 'predict')],
    but=[(tfps.BetweenGraphStrategy, 'fit')],
  ),
)
def test_models_of_an_earlier_one_are_refused(strategy_class, method):
  with testing.InProcessCluster(num_workers=1, num_ps=1) as servers:
    model = _trained(strategy_class(servers.cluster))
    model.predict(_X, verbose=0)
    dataset = tf.data.Dataset.from_tensors((_X, _X[:, :1]))
    with testing.InProcessCluster(num_workers=1, num_ps=1) as others:
      latest = _trained(strategy_class(others.cluster))
      with pytest.raises(RuntimeError, match='has made another strategy since'):
        getattr(model, method)(dataset, verbose=0)
      latest.fit(dataset, verbose=0)  # also of the earlier strategy's time


def test_a_model_is_refused_once_its_strategy_is_closed():
  strategy = tfps.BetweenGraphStrategy(tfps.Cluster.local())
  model = _trained(strategy)
  strategy.close()
  with pytest.raises(RuntimeError, match='it is closed, so that its ps'):
    model.predict(_X, verbose=0)
