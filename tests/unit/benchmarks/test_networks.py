"""The models that all sides train learn."""

import dataclasses

import keras
import pytest
import tensorflow as tf
import tf_keras

from benchmarks import networks
from benchmarks import workloads

_MLP = workloads.Mlp((4, 8, 3), batch=16)
_CLICKS = workloads.Clicks(num_rows=50, width=4, hidden=3, batch=16)
_FEATURES = dataclasses.replace(_CLICKS, num_tables=2)


@pytest.mark.parametrize('library', [keras, tf_keras])
@pytest.mark.parametrize(
  ('network', 'shapes'),
  [
    (networks.Mlp(_MLP), [(4, 8), (8, 3), (8,), (3,)]),
    (networks.Clicks(_CLICKS), [(50, 4), (4, 3), (3, 1), (3,), (1,)]),
    (
      networks.Clicks(_FEATURES),
      [(50, 4), (50, 4), (8, 3), (3, 1), (3,), (1,)],
    ),
  ],
)
def test_a_network_learns_what_it_is_shown(network, shapes, library):
  variables = network.variables()
  assert [tuple(v.shape) for v in variables] == shapes
  optimizer = network.optimizer(library)
  optimizer.learning_rate = 0.05
  optimizer.build(variables)
  batch = next(iter(network.dataset(tf.distribute.InputContext())))
  before = network.loss(variables, batch)
  for _ in range(20):
    gradients = network.gradients(variables, batch)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
  assert network.loss(variables, batch) < before


@pytest.mark.parametrize('sizes', [_CLICKS, _FEATURES])
def test_gradients_of_tables_are_of_the_rows_alone(sizes):
  network = networks.Clicks(sizes)
  variables = network.variables()
  batch = next(iter(network.dataset(tf.distribute.InputContext())))
  for table in network.gradients(variables, batch)[: sizes.num_tables]:
    assert isinstance(table, tf.IndexedSlices)
    assert table.values.shape == (16, 4)
