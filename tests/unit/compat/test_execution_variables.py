"""Canaries for what `tfps._compat.execution_variables` relies upon."""

import inspect
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import execution_variables as compat

_ARGUMENTS = {
  'handle',
  'name',
  'handle_name',
  'unique_id',
  'shape',
  'dtype',
  'trainable',
  'synchronization',
  'aggregation',
  'distribute_strategy',
  'in_graph_mode',
}


@pytest.fixture
def variable():
  return compat.ExecutionVariable(variable=tf.Variable(1.0))


def test_a_variable_can_be_made_around_a_handle():
  base = resource_variable_ops.BaseResourceVariable.__init__
  assert set(inspect.signature(base).parameters) >= _ARGUMENTS


def test_each_variable_has_an_id_of_its_own():
  ids = {tf.Variable(1.0)._unique_id for _ in range(3)}
  assert len(ids) == 3


def test_a_variable_knows_its_strategy():
  assert tf.Variable(1.0)._distribute_strategy is None
  strategy = tf.distribute.OneDeviceStrategy('CPU:0')
  with strategy.scope():
    assert tf.Variable(1.0)._distribute_strategy is strategy


def test_it_is_the_variable_that_it_was_made_of(variable):
  variable.assign_add(1.0)
  assert variable.numpy() == variable._own.numpy() == 2.0
  assert tf.function(lambda: variable + 1.0)() == 3.0


def test_its_own_value_is_read_and_set_by_single_operations(variable):
  before = variable.own_value()
  variable.set_own_value(np.array(7.0, 'f'))
  variable.assign_add(1.0)
  assert before == 1.0
  assert variable.own_value() == variable.numpy() == 8.0
  assert variable.own_value().dtype == np.float32
  with pytest.raises(tf.errors.InvalidArgumentError, match='dtype'):
    variable.set_own_value(np.array(7.0))


def test_every_use_asks_for_the_handle_anew(variable):
  @tf.function
  def use():
    with compat.copies([variable]) as (handle,):
      variable.assign(5.0)
      variable.assign_add(1.0)
      variable.assign_sub(3.0)
      used = {
        tensor is handle
        for operation in ops.get_default_graph().get_operations()
        for tensor in operation.inputs
        if tensor.dtype == tf.resource
      }
      assert used == {True}
      return variable.read_value(), variable * 2.0, tf.identity(variable)

  assert [float(value) for value in use()] == [3.0, 6.0, 3.0]
  assert variable.numpy() == 1.0


def test_branches_loops_and_functions_know_the_graph_around_them(variable):
  @tf.function
  def add(value):
    variable.assign_add(value)

  @tf.function(autograph=False)
  def use(number):
    with compat.copies([variable]):
      variable.assign(0.0)
      add(1.0)
      tf.cond(number > 0, lambda: add(10.0), lambda: None)
      tf.while_loop(
        lambda i: i < number,
        lambda i: (add(100.0), i + 1)[1],
        [tf.constant(0)],
      )
      return variable.read_value()

  assert use(tf.constant(2)) == 211.0
  assert variable.numpy() == 1.0


def test_the_graph_is_that_of_another_thread_that_takes_it_on(variable):
  found = []

  @tf.function
  def use():
    with compat.copies([variable]) as (handle,):
      graph = ops.get_default_graph()

      def look():
        with graph.as_default():
          found.append(variable.handle is handle)

      thread = threading.Thread(target=look)
      thread.start()
      thread.join()

  use()
  assert found == [True]


def test_after_an_error_it_is_itself_again(variable):
  @tf.function
  def fail():
    with compat.copies([variable]):
      raise ValueError('a bug')

  with pytest.raises(ValueError, match='a bug'):
    fail()
  assert not compat._COPIES
  assert tf.function(variable.read_value)() == 1.0
