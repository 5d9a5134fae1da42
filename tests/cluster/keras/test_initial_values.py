"""Initial values are computed on the ps, and those of a single process."""

import keras
import numpy as np
import pytest

import tfps


@pytest.mark.parametrize(
  'initializer',
  ['glorot_uniform', 'he_normal', 'truncated_normal', 'orthogonal', 'ones'],
)
@pytest.mark.parametrize(
  'make', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
@pytest.mark.tfps_cluster(workers=1, ps=2)
def test_initial_values_are_those_of_a_single_process(
  tfps_cluster, make, partitioner, initializer
):
  def made():
    keras.utils.set_random_seed(1)
    layer = keras.layers.Dense(3, kernel_initializer=initializer)
    layer.build([None, 5])
    return layer.get_weights()

  with make(tfps_cluster.cluster, partitioner).scope():
    mine = made()
  for value, expected in zip(mine, made(), strict=True):
    np.testing.assert_array_equal(value, expected)
