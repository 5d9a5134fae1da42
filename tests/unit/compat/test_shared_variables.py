import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import shared_variables as compat


def _named(name: str) -> compat.NamedVariable:
  return compat.NamedVariable(
    memory=compat.Memory(name), name=name, shape=[2], dtype=tf.float32
  )


def test_tensorflow_refuses_shared_names_in_eager_mode():
  with pytest.raises(tf.errors.InternalError, match='explicit shared_name'):
    resource_variable_ops._variable_handle_from_shape_and_dtype(
      [2], tf.float32, 'name', 'name', graph_mode=False
    )


def test_equal_names_are_the_same_memory():
  first, second = _named('same'), _named('same')
  first.assign([1.0, 2.0])
  second.assign_add([1.0, 1.0])
  assert first.numpy().tolist() == [2.0, 3.0]


def test_memory_stays_when_the_object_goes():
  _named('stays').assign([1.0, 2.0])
  assert _named('stays').is_initialized()


def test_functions_know_shape_and_dtype():
  variable = _named('typed')
  variable.assign([1.0, 2.0])

  @tf.function
  def read():
    value = variable.read_value()
    assert value.shape == [2]
    assert value.dtype == tf.float32
    return value

  assert read().numpy().tolist() == [1.0, 2.0]


def test_it_is_a_variable_to_tapes_and_checkpoints(tmp_path):
  variable = _named('saved')
  variable.assign([3.0, 4.0])
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(variable * [1.0, 2.0])
  assert tape.gradient(loss, variable).numpy().tolist() == [1.0, 2.0]
  path = tf.train.Checkpoint(v=variable).save(tmp_path / 'checkpoint')
  variable.assign([0.0, 0.0])
  tf.train.Checkpoint(v=variable).restore(path).assert_consumed()
  assert variable.numpy().tolist() == [3.0, 4.0]
