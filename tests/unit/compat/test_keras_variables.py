"""Canaries for what `tfps._compat.keras_variables` relies upon."""

import inspect

import keras
from keras.src import backend
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training.saving import saveable_object_util

from tfps._compat import keras_variables as compat
from tfps.variables import sharded


@pytest.fixture(autouse=True)
def _replaced():
  compat.take_part(sharded.ShardedVariable)


@pytest.fixture
def variable():
  shards = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]

  def make(next_creator, **kwargs):
    del next_creator, kwargs
    return sharded.ShardedVariable(shards)

  with tf.variable_creator_scope(make):
    return keras.Variable([1.0, 2.0, 3.0], name='x')


def test_keras_makes_its_value_there():
  theirs = inspect.unwrap(backend.Variable._initialize)
  assert 'self._value = tf.Variable(' in inspect.getsource(theirs)


def test_keras_gives_initial_values_as_functions():
  theirs = inspect.unwrap(backend.Variable._initialize_with_initializer)
  assert 'self._initialize(lambda: initializer(' in inspect.getsource(theirs)


def test_what_is_made_for_keras_is_known():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(compat.is_making())
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    keras.Variable(1.0)
    keras.Variable('zeros', shape=[2])
    tf.Variable(1.0)
  assert seen == [True, True, False]


def test_the_shape_of_what_is_made_is_known_and_of_nothing_else():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(compat.shape_of(kwargs['initial_value']))
    seen.append(compat.shape_of(lambda: tf.zeros([2])))
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    keras.Variable('zeros', shape=[2])
    keras.Variable([1.0])  # of which Keras asks TensorFlow
    tf.Variable(1.0)
  assert seen == [tf.TensorShape([2]), None, None, None, None, None]


def test_tables_and_counters_have_the_names_that_tell_them():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs.get('name'))
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    keras.layers.Embedding(3, 2, name='users').build()
    keras.optimizers.Adam()
  assert compat.TABLE in seen
  assert compat.COUNTER in seen


def test_the_class_decides_how_a_variable_is_saved(variable):
  newer = saveable_object_util.trackable_has_serialize_to_tensor
  assert newer(keras.Variable(1.0))
  assert not newer(variable)
  assert isinstance(variable, keras.Variable)


def test_shards_are_restored_all(variable, tmp_path):
  path = tf.train.Checkpoint(x=variable).save(str(tmp_path / 'c'))
  variable.assign([0.0, 0.0, 0.0])
  tf.train.Checkpoint(x=variable).restore(path).assert_consumed()
  np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0, 3.0])


class _InParts(tf.__internal__.tracking.Trackable):
  """Two parts of a value, told in the newer way."""

  restored = None

  def _serialize_to_tensors(self):
    parts = {'2 0,1': tf.constant([1.0]), '2 1,1': tf.constant([2.0])}
    return {'VARIABLE_VALUE': parts}

  def _restore_from_tensors(self, restored_tensors):
    self.restored = restored_tensors['VARIABLE_VALUE']


def test_in_the_newer_way_tensorflow_restores_one_part_only(tmp_path):
  # Once TensorFlow mends this, `tfps._compat.keras_variables` can go.
  parts = _InParts()
  path = tf.train.Checkpoint(x=parts).save(str(tmp_path / 'c'))
  tf.train.Checkpoint(x=parts).restore(path)
  np.testing.assert_array_equal(parts.restored, [1.0])


class _Ours(tf.distribute.OneDeviceStrategy):
  keras_functions = ''


def _own(shape, dtype=None):
  return tf.ones(shape, dtype)


_INITIALIZERS = {
  'zeros': ('zeros', True),
  'ones': ('ones', True),
  'a number': (keras.initializers.Constant(0.1), True),
  'an array': (keras.initializers.Constant(np.ones([4, 2], 'f')), False),
  'random': ('uniform', False),
  'own': (_own, False),
}


@pytest.mark.parametrize('name', _INITIALIZERS)
def test_what_is_constant_is_made_in_parts(name):
  initializer, has_parts = _INITIALIZERS[name]
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs['initial_value'])
    return next_creator(**kwargs)

  with _Ours('CPU:0').scope(), tf.variable_creator_scope(creator):
    variable = keras.Variable(initializer, shape=[4, 2], dtype='float32')
  (value,) = seen
  assert value.__module__.startswith('keras.src')
  assert ('partition_shape' in inspect.signature(value).parameters) == has_parts
  np.testing.assert_array_equal(variable.numpy().shape, [4, 2])


def test_a_part_is_like_the_whole():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs['initial_value'])
    return next_creator(**kwargs)

  with _Ours('CPU:0').scope(), tf.variable_creator_scope(creator):
    initializer = keras.initializers.Constant(0.5)
    keras.Variable(initializer, shape=[4, 2], dtype='float16')
  part = seen[0](partition_shape=(3, 2), partition_offset=(1, 0))
  assert part.dtype == tf.float16
  np.testing.assert_array_equal(part, np.full([3, 2], 0.5))
