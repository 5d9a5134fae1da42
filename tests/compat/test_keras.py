import inspect

import keras
from keras.src import backend
from keras.src.backend.common import stateless_scope
import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import keras as compat


@pytest.fixture(autouse=True)
def _replaced():
  compat.add_on_ps()


def test_stock_additions_read_and_write():
  # What we replace is wrapped, so that its source is still at hand.
  for name in ('assign_add', 'assign_sub'):
    theirs = inspect.unwrap(getattr(backend.Variable, name))
    assert 'self.assign(self' in inspect.getsource(theirs)


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


def test_a_seed_generators_state_has_its_name():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs)
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    keras.layers.Dropout(0.5)
    keras.Variable(1.0, name='other')
  assert [compat.is_seed_state(kwargs) for kwargs in seen] == [True, False]


def test_metrics_are_read_where_they_are():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs['synchronization'])
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    keras.metrics.Mean()
  assert set(seen) == {tf.VariableSynchronization.ON_READ}
