"""Canaries for what `tfps._compat.keras` relies upon."""

import inspect

import keras
from keras.src import backend
from keras.src.backend.common import stateless_scope
from keras.src.layers import Embedding
from keras.src.ops import numpy as numpy_ops
import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import keras as compat


@pytest.fixture(autouse=True)
def _replaced():
  compat.add_on_ps()
  compat.look_up_on_ps()


def _kwargs_of_variables(make):
  """What variable creators are given."""
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs)
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    make()
  return seen


def test_stock_additions_read_and_write():
  # What we replace is wrapped, so that its source is still at hand.
  for name in ('assign_add', 'assign_sub'):
    theirs = inspect.unwrap(getattr(backend.Variable, name))
    assert 'self.assign(self' in inspect.getsource(theirs)
    assert list(inspect.signature(theirs).parameters) == ['self', 'value']


def test_variables_of_this_process_go_keras_own_way():
  variable = keras.Variable(np.ones([2], 'f'))
  variable.assign_add([1.0, 2.0])
  variable.assign_sub([0.5, 0.5])
  np.testing.assert_array_equal(variable.numpy(), [1.5, 2.5])


def test_stateless_scopes_collect_additions():
  variable = keras.Variable(1.0)
  with stateless_scope.StatelessScope() as scope:
    variable.assign_add(1.0)
    assert float(scope.get_current_value(variable)) == 2.0
  assert float(variable.numpy()) == 1.0


def test_the_value_is_a_tf_variable():
  assert isinstance(keras.Variable(1.0)._value, tf.Variable)


def test_values_are_converted_to_a_dtype_by_this_method():
  variable = keras.Variable(1.0)
  converted = variable._convert_to_tensor(np.float64(2.0), tf.float16)
  assert converted.dtype == tf.float16


def test_the_value_is_not_cast_as_the_public_property_is():
  variable = keras.Variable(1.0)
  with backend.common.variables.AutocastScope('float16'):
    assert variable.value.dtype == tf.float16
    assert variable._value.dtype == tf.float32
    cast = variable._maybe_autocast(tf.constant(1.0))
  assert cast.dtype == tf.float16


def test_a_seed_generators_state_has_its_name():
  def make():
    keras.layers.Dropout(0.5)
    keras.Variable(1.0, name='other')

  seen = _kwargs_of_variables(make)
  assert [compat.is_seed_state(kwargs) for kwargs in seen] == [True, False]


def test_metrics_are_read_where_they_are():
  seen = _kwargs_of_variables(keras.metrics.Mean)
  on_read = tf.VariableSynchronization.ON_READ
  assert {kwargs['synchronization'] for kwargs in seen} == {on_read}


def test_metrics_are_told_from_other_variables():
  on_read = tf.VariableSynchronization.ON_READ

  def make():
    tf.Variable(1.0, synchronization=on_read)
    tf.Variable(lambda: 1.0, synchronization=on_read)
    keras.layers.Dense(1).build([1, 1])

  metrics = _kwargs_of_variables(keras.metrics.Mean)
  assert len(metrics) == 2
  assert all(map(compat.is_metric, metrics))
  assert not any(map(compat.is_metric, _kwargs_of_variables(make)))


LOOKUPS = {
  'keras.ops.take': numpy_ops.take,
  'a traced take': numpy_ops.Take.call,
}


@pytest.mark.parametrize('name', LOOKUPS)
def test_lookups_find_what_we_replace_in_its_module(name):
  source = inspect.getsource(LOOKUPS[name])
  assert 'backend.numpy.take(x, indices, axis=' in source


def test_embeddings_look_up_by_take():
  source = inspect.getsource(Embedding.call)
  assert 'ops.take(self.embeddings, inputs, axis=0)' in source


def test_take_takes_these_arguments():
  theirs = inspect.unwrap(backend.numpy.take)
  assert theirs is not backend.numpy.take
  assert list(inspect.signature(theirs).parameters) == ['x', 'indices', 'axis']


@pytest.mark.parametrize(
  'indices',
  [
    np.array([[2, 0], [-1, 1]]),
    tf.sparse.from_dense([[2, 0], [0, 1]]),
  ],
  ids=['dense', 'sparse'],
)
def test_tables_of_this_process_go_keras_own_way(indices):
  table = keras.Variable(np.arange(6.0).reshape(3, 2))
  theirs = inspect.unwrap(backend.numpy.take)
  ours = keras.ops.take(table, indices, axis=0)
  expected = theirs(table, indices, axis=0)
  assert type(ours) is type(expected)
  tf.nest.map_structure(
    np.testing.assert_array_equal, ours, expected, expand_composites=True
  )
