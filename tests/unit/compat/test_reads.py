"""What `_compat.reads` relies on."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import graphs
from tfps._compat import reads
from tfps._compat import write_counts


class _Tens:
  """Reads ten of everything."""

  def read(self, variable, place):
    value = tf.fill(variable.shape, 10.0)
    reads.note_read(variable, value)
    return value

  def read_rows(self, variable, indices, place):
    rows = tf.fill([*indices.shape, *variable.shape[1:]], 10.0)
    reads.note_rows(variable, rows, lambda g: tf.IndexedSlices(g, indices))
    return rows


def test_all_ways_to_read_go_through_the_reader():
  variable = tf.Variable([1.0, 2.0])
  table = tf.Variable([[1.0], [2.0]])

  @tf.function
  def read():
    with reads.reading(_Tens()):
      return [
        variable.value(),
        variable.read_value(),
        variable + 0.0,
        tf.identity(variable),
        tf.nn.embedding_lookup(table, [1, 0])[:, 0],
        tf.gather(table, [1, 0])[:, 0],
      ]

  assert all((value.numpy() == 10).all() for value in read())
  assert variable.read_value().numpy().tolist() == [1.0, 2.0]


def test_gradients_reach_what_the_reader_read():
  variable = tf.Variable([1.0, 2.0])
  table = tf.Variable([[1.0], [2.0]])

  @tf.function
  def gradients():
    with reads.reading(_Tens()), tf.GradientTape() as tape:
      loss = tf.reduce_sum(variable * variable) + tf.reduce_sum(
        table.sparse_read(tf.constant([1]))
      )
    return tape.gradient(loss, [variable, table])

  dense, sparse = gradients()
  assert dense.numpy().tolist() == [20.0, 20.0]
  assert isinstance(sparse, tf.IndexedSlices)
  assert sparse.indices.numpy().tolist() == [1]


def test_functions_that_are_called_read_for_themselves():
  variable = tf.Variable(1.0)
  inner = tf.function(lambda: variable.read_value())

  @tf.function
  def outer():
    with reads.reading(_Tens()):
      return inner()

  assert outer().numpy() == 1.0


def test_writes_are_seen_in_branches_and_loops():
  variable = tf.Variable(1.0)
  seen = []

  @tf.function
  def function(flag):
    home = tf.compat.v1.get_default_graph()

    def note():
      graph = tf.compat.v1.get_default_graph()
      seen.append(write_counts.num_writes(variable, graph, home))

    def branch():
      note()
      variable.assign_add(1.0)
      note()
      return 0

    variable.read_value()
    note()
    tf.cond(flag, branch, lambda: 0)
    note()

  function(tf.constant(True))
  assert seen == [0, 0, 1, 1]


def test_the_device_of_an_operation_is_known_beforehand():
  found = []

  @tf.function
  def function():
    found.append(reads.current_device())
    with tf.device('/job:ps/task:1'):
      found.append(reads.current_device())
    found.append(reads.current_device())

  function.get_concrete_function()
  assert found == ['', '/job:ps/task:1', '']


def test_an_identity_can_be_rewired():
  @tf.function
  def function(x):
    promise = tf.identity(tf.zeros([2]))
    result = promise + 1.0
    graphs.rewire(promise, x)
    return result

  assert function(tf.constant([1.0, 2.0])).numpy().tolist() == [2.0, 3.0]


@pytest.mark.parametrize('traced', [False, True])
@pytest.mark.parametrize('shape', [[6], [2, 3], [3, 1, 2]])
def test_rows_that_repeat_are_read_once_and_have_the_same_gradient(
  shape, traced
):
  rng = np.random.default_rng(0)
  table = tf.constant(rng.normal(size=[9, 4]), tf.float32)
  factors = tf.constant(rng.normal(size=[*shape, 4]), tf.float32)
  sizes = []

  def read(distinct):
    sizes.append(distinct)
    return tf.gather(table, distinct)

  def values(gather, indices):
    with tf.GradientTape() as outer:
      outer.watch(table)
      with tf.GradientTape() as tape:
        tape.watch(table)
        rows = gather(indices)
        loss = tf.reduce_sum((rows * factors) ** 3)
      first = tf.convert_to_tensor(tape.gradient(loss, table))
      loss = tf.reduce_sum(first**2)
    second = tf.convert_to_tensor(outer.gradient(loss, table))
    return rows, first, second, sizes.pop() if sizes else tf.zeros([0])

  def ours(indices):
    return reads.read_distinct(read, indices, table.shape[1:])

  wrap = tf.function if traced else lambda function: function
  indices = tf.reshape(tf.constant([5, 2, 5, 0, 2, 5], tf.int64), shape)
  *got, distinct = wrap(lambda i: values(ours, i))(indices)
  *right, _ = wrap(lambda i: values(lambda i: tf.gather(table, i), i))(indices)
  assert distinct.numpy().tolist() == [5, 2, 0]
  for one, other in zip(got, right, strict=True):
    np.testing.assert_array_equal(one, other)


def test_the_shape_of_rows_may_be_unknown():
  @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
  def function(indices):
    rows = reads.read_distinct(
      lambda distinct: tf.cast(distinct, tf.float32)[:, None],
      indices,
      tf.TensorShape([1]),
    )
    assert rows.shape.as_list() == [None, None, 1]
    return rows

  rows = function(tf.constant([[3, 1, 3]]))
  assert rows.numpy().tolist() == [[[3.0], [1.0], [3.0]]]


def test_internals_are_there():
  variable = resource_variable_ops.BaseResourceVariable
  assert 'no_copy' in inspect.signature(variable._read_variable_op).parameters
  assert callable(variable.sparse_read)
  assert callable(record.record_operation)
  assert callable(record.stop_recording)
  assert hasattr(tf.Operation, '_update_input')
  assert issubclass(
    control_flow.WhileBodyFuncGraph, control_flow.ControlFlowFuncGraph
  )
  graph = func_graph.FuncGraph('graph')
  assert graph._function_captures.by_val_internal == {}
  assert list(graph._device_function_stack.peek_objs()) == []
  assert list(graph._colocation_stack.peek_objs()) == []


def test_a_graph_has_each_constant_once_for_a_device():
  found = {}

  @tf.function
  def function():
    with tf.device('CPU:0'):
      on_cpu = [reads.constant(7, tf.int32) for _ in range(2)]
      others = [reads.constant(7, tf.int64), reads.constant((7,), tf.int32)]

    def branch():
      inner = reads.constant(7, tf.int32)
      assert inner.graph is tf.compat.v1.get_default_graph()
      return inner

    found['all'] = [*on_cpu, *others, reads.constant(7, tf.int32)]
    return tf.cond(tf.constant(value=True), branch, branch)

  assert function() == 7
  first, again, *others = found['all']
  assert first is again
  assert len({id(tensor) for tensor in (first, *others)}) == 4
  assert reads.constant(7, tf.int32) is not reads.constant(7, tf.int32)
