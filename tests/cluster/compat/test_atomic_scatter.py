"""Additions to rows that hold their variable's lock as a writer."""

import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)
_ROWS = tf.constant([[1, 2], [2, 4]])
_VALUES = np.arange(8.0).reshape(2, 2, 2)


def _operations(function) -> set[str]:
  return {
    operation.type
    for operation in function.get_concrete_function().graph.get_operations()
  }


@pytest.mark.parametrize('method', ['scatter_add', 'scatter_sub'])
def test_rows_of_ps_are_added_to_as_anywhere(tfps_cluster, method):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  alone = tf.Variable(np.ones([5, 2]))
  with strategy.scope():
    on_ps = tf.Variable(np.ones([5, 2]))

  def change(variable):
    change_rows = getattr(variable, method)
    change_rows(tf.IndexedSlices(tf.constant(_VALUES), _ROWS))
    change_rows(tf.IndexedSlices(tf.constant(0.5, tf.float64), [0, 0]))
    # Converted to the variable's type.
    change_rows(tf.IndexedSlices([[1, 1]], tf.constant([4], tf.int64)))

  for variable in (alone, on_ps):
    change(variable)
    tf.function(lambda variable=variable: change(variable))()
  np.testing.assert_array_equal(on_ps.numpy(), alone.numpy())
  function = tf.function(lambda: change(on_ps))
  assert 'ResourceScatterAdd' not in _operations(function)
  assert 'ResourceScatterSub' not in _operations(function)


def test_shards_are_added_to_by_index(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(2)
  )
  with strategy.scope():
    table = tf.Variable(np.zeros([5, 2]))

  @tf.function
  def add():
    rows = tf.constant([4, 0, 4])
    table.scatter_add(tf.IndexedSlices(np.ones([3, 2]), rows))

  add()
  np.testing.assert_array_equal(
    tf.concat(table.variables, 0)[:, 0], [1, 0, 0, 0, 2]
  )
  assert 'ResourceScatterAdd' not in _operations(add)


def test_what_is_on_no_ps_is_left_to_tensorflow(tfps_cluster):
  tfps.ParameterServerStrategy(tfps_cluster.cluster)
  variable = tf.Variable(np.zeros([5, 2]))

  @tf.function
  def add():
    variable.scatter_add(tf.IndexedSlices(np.ones([1, 2]), [3]))

  assert 'ResourceScatterAdd' in _operations(add)
  with pytest.raises(TypeError, match='IndexedSlices'):
    variable.scatter_add(1.0)
