"""Variables that each worker has for itself, when a step is interrupted."""

import numpy as np
import pytest
import tensorflow as tf

from tfps.updates.allreduce import local_state as local_state_lib


@pytest.fixture
def state():
  made = local_state_lib.LocalState()
  made.variables = [tf.Variable(1.0, name=name) for name in 'abc']
  return made


def _values(state):
  return [float(variable) for variable in state.variables]


def test_values_are_copied_unnoticed_by_tapes(state):
  @tf.custom_gradient
  def copied(value):
    with tf.init_scope():
      state.unpack(state.packed())
    return value, lambda gradient: gradient  # of no variable

  assert float(tf.function(copied)(2.0)) == 2.0


def _step(state, *, fails=False):
  """Adds one to all variables, unless it fails after the first."""
  number = tf.Variable(0 if fails else 1)

  @tf.function(autograph=False)
  def step():
    last = state.begin_change()
    for variable in state.variables:
      with tf.control_dependencies([last]):
        last = tf.identity(variable.assign_add(1.0))
      with tf.control_dependencies([last]):
        last = tf.debugging.assert_positive(number)
    with tf.control_dependencies([last]):
      return state.end_change()

  step()


def test_a_whole_step_is_not_undone(state):
  _step(state)
  assert not state.undo_change()
  assert _values(state) == [2.0, 2.0, 2.0]


def test_an_interrupted_step_is_undone_once(state):
  _step(state)
  with pytest.raises(tf.errors.InvalidArgumentError):
    _step(state, fails=True)
  np.testing.assert_array_equal(_values(state), [3.0, 2.0, 2.0])
  assert state.undo_change()
  assert _values(state) == [2.0, 2.0, 2.0]
  assert not state.undo_change()
  _step(state)
  assert _values(state) == [3.0, 3.0, 3.0]


def test_a_step_that_changes_twice_is_undone_as_a_whole(state):
  first, *_ = state.variables

  @tf.function(autograph=False)
  def half():
    with tf.control_dependencies([state.begin_change()]):
      first.assign_add(1.0)

  half()
  half()
  assert _values(state) == [3.0, 1.0, 1.0]
  assert state.undo_change()
  assert _values(state) == [1.0, 1.0, 1.0]
