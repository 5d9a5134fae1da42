"""Canaries for what `tfps._compat.handles` relies upon."""

import copy
import gc
import types

import pytest
import tensorflow as tf
from tensorflow.python.distribute import ps_values
from tensorflow.python.eager.polymorphic_function import concrete_function

from tfps._compat import handles
from tfps._compat import shared_variables


@pytest.fixture(autouse=True)
def functions_are_noted():
  handles.note_functions()


def make_plain():
  return tf.Variable([1.0, 2.0])


def make_caching():
  return ps_values.CachingVariable(tf.Variable([1.0, 2.0]))


def make_aggregating():
  return ps_values.AggregatingVariable(
    tf.distribute.get_strategy(),
    ps_values.CachingVariable(tf.Variable([1.0, 2.0])),
    tf.VariableAggregation.SUM,
  )


@pytest.mark.parametrize('make', [make_plain, make_caching, make_aggregating])
def test_a_variable_and_its_functions_go_on_with_new_memory(make):
  variable, other = make(), tf.Variable(10.0)

  @tf.function
  def inner():
    variable.assign_add([1.0, 1.0])

  @tf.function
  def outer():
    inner()
    other.assign_add(1.0)
    return variable.read_value() + other

  outer()
  handles.renew([variable])
  assert not variable.is_initialized()
  variable.assign([5.0, 6.0])
  other.assign(0.0)
  assert outer().numpy().tolist() == [7.0, 8.0]
  assert variable.numpy().tolist() == [6.0, 7.0]
  assert outer.experimental_get_tracing_count() == 1


def test_functions_of_a_loaded_model_and_copies_go_on_too(tmp_path):
  module = tf.Module()
  module.variable = tf.Variable(1.0)
  module.add = tf.function(
    lambda: module.variable.assign_add(1.0), input_signature=[]
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  copied = copy.copy(loaded.add.get_concrete_function())
  handles.renew([loaded.variable])
  loaded.variable.assign(4.0)
  loaded.add()
  copied()
  assert loaded.variable.numpy() == 6.0


def test_every_function_is_noted_as_long_as_it_exists():
  variable = tf.Variable(1.0)
  kept = tf.function(lambda: variable + 1.0).get_concrete_function()
  functions = {
    id(each)
    for each in gc.get_objects()
    if isinstance(each, concrete_function.ConcreteFunction)
    and any(tensor is variable.handle for tensor in each.captured_inputs)
  }
  assert id(kept) in functions
  assert functions <= set(handles._FUNCTIONS)
  key = id(kept)
  del kept
  gc.collect()
  assert key not in handles._FUNCTIONS


def test_if_one_cannot_be_renewed_all_can_be_later():
  variable = tf.Variable(1.0)
  unreachable = types.SimpleNamespace(
    _v=tf.Variable(1.0), device='/job:ps/task:7/device:CPU:0'
  )

  @tf.function
  def add():
    variable.assign_add(1.0)

  add()
  with pytest.raises(tf.errors.InvalidArgumentError, match='device'):
    handles.renew([variable, unreachable])
  handles.renew([variable])
  variable.assign(5.0)
  add()
  assert variable.numpy() == 6.0


def test_what_is_traced_later_has_the_new_memory_too():
  variable = tf.Variable(1.0)
  handles.renew([variable])
  variable.assign(3.0)
  assert tf.function(lambda: variable + 1.0)().numpy() == 4.0


@pytest.mark.parametrize('times', [1, 2])
def test_what_is_being_traced_meanwhile_has_the_new_memory(times):
  variable = tf.Variable(1.0)

  @tf.function
  def inner():
    value = variable + 1.0
    for _ in range(times):
      handles.renew([variable])
    return value

  outer = tf.function(lambda: inner() + 1.0).get_concrete_function()
  variable.assign(3.0)
  assert outer().numpy() == inner().numpy() + 1.0 == 5.0


def test_what_was_traced_with_old_and_new_memory_is_refused():
  variable = tf.Variable(1.0)

  @tf.function
  def add():
    variable.assign_add(1.0)
    if not is_renewed:
      is_renewed.append(True)
      handles.renew([variable])
    return variable.read_value()

  is_renewed = []
  with pytest.raises(handles.RenewedError, match='Trace it again') as refused:
    add()
  assert refused.tb  # the function that has failed is still there
  handles.renew([variable])
  variable.assign(3.0)
  assert add().numpy() == 4.0


def test_old_memory_is_not_remembered_once_nobody_holds_it():
  variable = tf.Variable(1.0)
  old = variable.handle
  handles.renew([variable])
  key = id(old)
  assert key in handles._REPLACED
  del old
  gc.collect()
  assert key not in handles._REPLACED


def test_gradients_flow_to_the_variable():
  variable = tf.Variable(3.0)

  @tf.function
  def gradient():
    with tf.GradientTape() as tape:
      loss = variable**2
    return tape.gradient(loss, variable)

  gradient()
  handles.renew([variable])
  variable.assign(4.0)
  assert gradient().numpy() == 8.0


@pytest.mark.parametrize('dtype', [tf.int64, tf.string, tf.bool, tf.bfloat16])
def test_variables_of_any_type_are_renewed(dtype):
  value = tf.cast(1, dtype) if dtype != tf.string else tf.constant('a')
  variable = tf.Variable(value)
  handles.renew([variable])
  variable.assign(value)
  assert variable.numpy() == value.numpy()


def test_memory_with_a_name_keeps_it():
  def make():
    return shared_variables.NamedVariable(
      memory=shared_variables.Memory('kept'),
      name='kept',
      shape=[],
      dtype=tf.float32,
      trainable=True,
    )

  variable = make()
  variable.assign(3.0)
  tf.raw_ops.DestroyResourceOp(resource=variable.handle)
  handles.renew([variable])
  variable.assign(4.0)
  assert make().numpy() == 4.0


def test_an_argument_is_described_as_the_handle_of_a_variable():
  variable = tf.Variable(tf.zeros([2, 3]))

  @tf.function(input_signature=[tf.TensorSpec([], tf.resource)])
  def gather(handle):
    shapes = []
    for _ in range(2):
      shapes.append(
        tf.raw_ops.ResourceGather(
          resource=handle, indices=[0], dtype=tf.float32
        )
      )
      handles.describe(handle, variable.handle)
    assert [each.shape.rank for each in shapes] == [None, 2]
    return shapes[1]

  assert gather(variable.handle).numpy().tolist() == [[0, 0, 0]]
