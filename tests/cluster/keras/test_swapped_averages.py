"""Weights that take turns with their moving averages."""

import keras
import numpy as np
import pytest

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_RNG = np.random.default_rng(0)
_X, _Y = _RNG.random((24, 4), 'f'), _RNG.random((24, 1), 'f')


def _build(optimizer):
  keras.utils.set_random_seed(1)
  model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(1, 'tanh')]
  )
  model.compile(optimizer(), 'mse', steps_per_execution=2)
  return model


def _fit(model, path):
  return model.fit(
    *(_X, _Y, 4, 2),
    shuffle=False,
    verbose=0,
    validation_data=(_X, _Y),
    callbacks=[
      keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
      keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
    ],
  ).history


_SHARDS = partitioners.FixedShards(2)
_WAYS = {
  'in shards': (tfps.ParameterServerStrategy, _SHARDS),
  'between graphs': (tfps.BetweenGraphStrategy, None),
  'whole': (tfps.ParameterServerStrategy, None),
  'between graphs, in shards': (tfps.BetweenGraphStrategy, _SHARDS),
}
_OPTIMIZERS = {
  'Adam': lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5),
  'scaled SGD': lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
  ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('kind', 'partitioner', 'name'),
  turns.by_turns({name: name for name in _OPTIMIZERS}, _WAYS),
)
def test_weights_are_swapped_as_in_a_single_process(
  tfps_cluster, tmp_path, kind, partitioner, name
):
  optimizer = _OPTIMIZERS[name]
  with kind(tfps_cluster.cluster, partitioner).scope():
    model = _build(optimizer)
  alone = _build(optimizer)
  paths = [str(tmp_path / f'{n}.weights.h5') for n in ('model', 'alone')]
  history = _fit(model, paths[0])
  expected = _fit(alone, paths[1])
  for metric, values in expected.items():
    np.testing.assert_allclose(history[metric], values, rtol=1e-5)
  for _ in range(2):  # what was trained last, then what the callback has saved
    for mine, theirs in zip(
      model.get_weights(), alone.get_weights(), strict=True
    ):
      np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    model.load_weights(paths[0])
    alone.load_weights(paths[1])


@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_an_update_of_a_sharded_variable_may_assign_to_another(
  tfps_cluster, kind
):
  strategy = kind(tfps_cluster.cluster, partitioners.FixedShards(2))
  with strategy.scope():
    one, other = (
      keras.Variable(np.full([4, 2], value, 'f')).value for value in (1, 3)
    )
    strategy.extended.update(
      one, lambda own, its: its.assign(own + its), args=(other,)
    )
  assert (np.concatenate([v.numpy() for v in other.variables]) == 4).all()
  assert (np.concatenate([v.numpy() for v in one.variables]) == 1).all()
