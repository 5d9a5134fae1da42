"""Canaries for what `tfps._compat.replicated_writes` relies on."""

import gc
import inspect

import pytest
import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import replicated_writes as compat
from tfps._compat import survivors


@pytest.fixture
def make():
  made = compat.ReplicatedWrites()

  def make(initial):
    variable = tf.Variable(initial)
    survivors.make_survive(variable, lambda function: function())
    twin = compat.make(variable, 'CPU:0')
    twin.assign(variable)
    made.add(variable, twin)
    return variable, twin

  return make


def check(variable, twin):
  assert variable.numpy().tolist() == twin.numpy().tolist()


_ROWS = tf.IndexedSlices(tf.constant([[5.0, 6.0]]), tf.constant([1]))

WRITES = {
  'assign': lambda v: v.assign([[1.0, 2.0], [3.0, 4.0]]),
  'assign_add': lambda v: v.assign_add(tf.ones([2, 2])),
  'assign_sub': lambda v: v.assign_sub(tf.ones([2, 2])),
  'scatter_add': lambda v: v.scatter_add(_ROWS),
  'scatter_update': lambda v: v.scatter_update(_ROWS),
  'scatter_nd_sub': lambda v: v.scatter_nd_sub([[0, 1]], [7.0]),
  'batch_scatter_update': lambda v: v.batch_scatter_update(
    tf.IndexedSlices(tf.constant([[8.0], [9.0]]), tf.constant([[0], [1]]))
  ),
}


@pytest.mark.parametrize('write', WRITES)
@pytest.mark.parametrize('call', [lambda f: f, tf.function], ids=['', 'traced'])
def test_a_twin_is_written_to_as_its_variable_is(make, write, call):
  variable, twin = make([[1.0, 1.0], [1.0, 1.0]])
  before = variable.numpy().tolist()

  def step():
    WRITES[write](variable)

  for _ in range(2):
    call(step)()
  assert variable.numpy().tolist() != before
  check(variable, twin)


def test_operations_that_write_to_several_variables_have_all_their_twins(make):
  variable, twin = make([1.0, 2.0])
  slot, slots_twin = make([0.0, 0.0])

  @tf.function
  def apply():
    tf.raw_ops.ResourceApplyMomentum(
      var=variable.handle,
      accum=slot.handle,
      lr=0.1,
      grad=[1.0, -1.0],
      momentum=0.9,
    )

  apply()
  apply()
  assert slot.numpy().tolist() == pytest.approx([1.9, -1.9])
  check(variable, twin)
  check(slot, slots_twin)


def test_branches_and_loops_write_to_both(make):
  variable, twin = make(0)

  @tf.function
  def count(number):
    for i in tf.range(number):
      if i % 2 == 0:
        variable.assign_add(10)
      else:
        variable.assign_add(1)

  count(5)
  assert variable.numpy() == 32
  check(variable, twin)


def test_a_restored_checkpoint_goes_to_both(make, tmp_path):
  variable, twin = make([1.0, 2.0])
  path = tf.train.Checkpoint(variable=variable).save(str(tmp_path / 'it'))
  variable.assign([0.0, 0.0])
  check(variable, twin)
  tf.train.Checkpoint(variable=variable).restore(path).assert_consumed()
  assert variable.numpy().tolist() == [1.0, 2.0]
  check(variable, twin)


def test_what_is_written_apart_goes_to_one(make):
  variable, twin = make(1)

  @tf.function
  def add():
    variable.assign_add(1)

  with compat.suspended():
    add()
    variable.assign_add(1)
  assert (variable.numpy(), twin.numpy()) == (3, 1)


def test_a_variable_without_a_twin_has_none(make):
  _, twin = make(1)
  alone = tf.Variable(1)
  assert compat.replica_of(alone) is None
  assert compat.replica_of(twin) is None


def test_twins_of_what_is_gone_are_forgotten():
  made = compat.ReplicatedWrites()
  variable = tf.Variable(1)
  made.add(variable, compat.make(variable, 'CPU:0'))
  assert compat.replica_of(variable) is not None
  del made
  gc.collect()
  assert compat.replica_of(variable) is None


def test_what_is_replaced_takes_the_same_arguments():
  create = inspect.unwrap(func_graph.FuncGraph._create_op_internal)
  assert list(inspect.signature(create).parameters) == [
    'self',
    'op_type',
    'inputs',
    'dtypes',
    'input_types',
    'name',
    'attrs',
    'op_def',
    'compute_device',
  ]
  theirs = inspect.unwrap(
    resource_variable_ops.shape_safe_assign_variable_handle
  )
  assert next(iter(inspect.signature(theirs).parameters)) == 'handle'


_OTHERS = {
  'AssignVariableXlaConcatND',  # of TPUs
  'DisableCopyOnRead',  # writes nothing
  'RngSkip',  # of generators, which no strategy with ps lets be made
}


def test_all_of_tensorflows_operations_that_write_are_known():
  takes_variable = [
    name
    for name, definition in _definitions().items()
    if definition.is_stateful
    and not definition.output_arg
    and definition.input_arg
    and definition.input_arg[0].type == tf.resource.as_datatype_enum
    and definition.input_arg[0].name in ('resource', 'var', 'ref')
    and not name.startswith(('Destroy', 'Summary', 'Experimental'))
  ]
  assert len(takes_variable) > 40
  unknown = {n for n in takes_variable if not compat._WRITE.fullmatch(n)}
  assert unknown == _OTHERS


def _definitions():
  from tensorflow.python.framework import op_def_registry

  names = [n for n in dir(tf.raw_ops) if n[0].isupper()]
  found = {name: op_def_registry.get(name) for name in names}
  return {name: one for name, one in found.items() if one is not None}


def test_an_operation_can_be_put_elsewhere_than_where_others_are_colocated():
  variable = tf.Variable(1)

  @tf.function
  def function():
    with (
      ops.colocate_with(variable.handle),
      ops.colocate_with(None, ignore_existing=True),
      tf.device('CPU:0'),
    ):
      return tf.constant(1)

  assert function().numpy() == 1
