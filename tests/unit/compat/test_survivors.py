"""Canaries for what `tfps._compat.survivors` relies upon."""

import pytest
import tensorflow as tf
from tensorflow.python.distribute import ps_values

from tfps._compat import side_executor
from tfps._compat import survivors


class Surviving:
  """Fails once before each call."""

  def __init__(self):
    self.calls = 0

  def __call__(self, function):
    self.calls += 1
    return function()


@pytest.fixture
def surviving():
  return Surviving()


READS = {
  'numpy': lambda v: v.numpy(),
  'read_value': lambda v: v.read_value(),
  'value': lambda v: v.value(),
  'as a tensor': tf.convert_to_tensor,
  'in an operation': lambda v: v + 1.0,
  'float': float,
  'assign': lambda v: v.assign(2.0),
}
WRAPPERS = {
  'plain': lambda v: v,
  'caching': ps_values.CachingVariable,
}


@pytest.mark.parametrize('wrapper', WRAPPERS)
@pytest.mark.parametrize('read', READS)
def test_what_a_program_does_survives(surviving, read, wrapper):
  variable = WRAPPERS[wrapper](tf.Variable(1.0))
  survivors.make_survive(variable, surviving)
  READS[read](variable)
  assert surviving.calls > 0


@pytest.mark.parametrize('read', READS)
def test_background_operations_fail_as_a_repair_waits_for_them(surviving, read):
  variable = tf.Variable(1.0)
  survivors.make_survive(variable, surviving)
  with side_executor.run_aside('CPU:0'):
    READS[read](variable)
    survivors.surviving(variable, variable.read_value)
  assert surviving.calls == 0
  READS[read](variable)
  assert surviving.calls > 0


def test_a_checkpoint_survives(surviving, tmp_path):
  variable = tf.Variable(1.0)
  survivors.make_survive(variable, surviving)
  path = tf.train.Checkpoint(v=variable).save(tmp_path / 'c')
  assert surviving.calls > 0
  variable.assign(5.0)
  tf.train.Checkpoint(v=variable).restore(path)
  assert variable.numpy() == 1.0


def test_additions_are_never_done_twice(surviving):
  variable = tf.Variable(1.0)
  survivors.make_survive(variable, surviving)
  variable.assign_add(1.0, read_value=False)
  assert surviving.calls == 0


WRITES = {
  'assign': lambda v: v.assign([2.0, 3.0]),
  'assign_add': lambda v: v.assign_add([2.0, 3.0]),
  'assign_sub': lambda v: v.assign_sub([2.0, 3.0], read_value=False),
  'scatter': lambda v: v.scatter_add(tf.IndexedSlices([2.0], [0])),
  'slice': lambda v: v[:1].assign([2.0]),
}


@pytest.mark.parametrize('write', WRITES)
def test_each_write_outside_of_functions_is_noted(surviving, write):
  notes = []
  variable = tf.Variable([1.0, 1.0])

  def wrote():
    notes.append(variable.numpy()[0])

  survivors.make_survive(variable, surviving, wrote=wrote)
  WRITES[write](variable)
  assert notes == [variable.numpy()[0]] != [1.0]  # once it is done


@pytest.mark.parametrize('write', WRITES)
def test_writes_in_functions_are_not_noted(surviving, write):
  notes = []
  variable = tf.Variable([1.0, 1.0])
  survivors.make_survive(variable, surviving, wrote=lambda: notes.append(1))

  @tf.function
  def function():
    WRITES[write](variable)

  function()
  assert not notes


def test_functions_are_left_alone(surviving):
  variable = tf.Variable(1.0)
  survivors.make_survive(variable, surviving)

  @tf.function
  def double():
    variable.assign(variable * 2.0)

  double()
  assert surviving.calls == 0
  assert type(variable).__name__ == 'ResourceVariable'
  assert isinstance(variable, tf.Variable)
