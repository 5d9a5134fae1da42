"""Canaries for what `tfps._compat.keras_variables` relies upon."""

import inspect

import keras
from keras.src import backend
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training.saving import saveable_object_util

from tfps import sharded
from tfps._compat import keras_variables as compat


@pytest.fixture(autouse=True)
def _replaced():
  compat.save_by_shards()


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
