"""Variables that are read, assigned, saved and restored with rows elsewhere."""

import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import open_shapes
from tfps._compat import whole_values

_WHOLE = np.arange(10, dtype='f').reshape(5, 2)


class _Rest:
  """All rows but the first two, in a variable of their own."""

  def __init__(self):
    self.rows = tf.Variable(np.zeros([0, 2], 'f'), shape=[None, 2])

  def add_to(self, variable, first):
    del variable
    return tf.concat([first, self.rows], axis=0)

  def take_from(self, variable, value):
    del variable
    self.rows.assign(value[2:])
    return value[:2]


@pytest.fixture
def variable():
  made = tf.Variable(np.ones([2, 2], 'f'))
  open_shapes.open_rows(made)
  whole_values.make_whole(made, _Rest())
  return made


def test_it_is_read_and_assigned_as_a_whole(variable):
  variable.assign(_WHOLE)
  np.testing.assert_array_equal(variable.numpy(), _WHOLE)
  np.testing.assert_array_equal(tf.function(variable.read_value)(), _WHOLE)
  first = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
  np.testing.assert_array_equal(first, _WHOLE[:2])


def test_it_is_saved_and_restored_as_a_whole(variable, tmp_path):
  variable.assign(_WHOLE)
  path = tf.train.Checkpoint(variable=variable).save(tmp_path / 'saved')
  (found,) = (
    tf.train.load_variable(path, name)
    for name, shape in tf.train.list_variables(path)
    if len(shape) == 2
  )
  np.testing.assert_array_equal(found, _WHOLE)
  variable.assign(-_WHOLE)
  tf.train.Checkpoint(variable=variable).restore(path).assert_consumed()
  np.testing.assert_array_equal(variable.numpy(), _WHOLE)
