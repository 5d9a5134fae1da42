"""What `_compat.gathers` relies on, and what it makes of gathers."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import backprop_util
from tensorflow.python.framework import indexed_slices
from tensorflow.python.ops import array_ops
from tensorflow.python.ops import gen_array_ops
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel

from tfps._compat import gathers
from tfps._compat import graphs
from tfps._compat import reads
from tfps._compat import write_counts

_TABLE = np.arange(40_000, dtype='f').reshape(10_000, 4)


@pytest.fixture(autouse=True)
def _replaced():
  gathers.take_part(write_counts.num_writes_here)


@pytest.fixture
def table():
  return tf.Variable(_TABLE)


def _kinds(function, *args):
  """The kinds of operations that read the variable or its value."""
  graph = function.get_concrete_function(*args).graph
  kinds = {operation.type for operation in graph.get_operations()}
  return kinds & {'ResourceGather', 'GatherV2', 'GatherNd'}


def _noted(table):
  value = tf.convert_to_tensor(table)
  reads.note_value(value, table)
  return value


_IDS = np.array([7, 9_999, 0, 7])
_LOOKUPS = {
  'gather': (lambda t, i: tf.gather(t, i), _TABLE[_IDS]),
  'of a cast': (
    lambda t, i: tf.gather(tf.cast(tf.identity(t), tf.float64), i),
    _TABLE[_IDS].astype('d'),
  ),
  'of small integers': (
    lambda t, i: tf.gather(t, tf.cast(i % 100, tf.int16)),
    _TABLE[_IDS % 100],
  ),
  'gather_nd': (lambda t, i: tf.gather_nd(t, i[:, None]), _TABLE[_IDS]),
  'of elements': (
    lambda t, i: tf.gather_nd(t, tf.stack([i, i % 4], axis=1)),
    _TABLE[_IDS, _IDS % 4],
  ),
  'embedding_lookup': (tf.nn.embedding_lookup, _TABLE[_IDS]),
}


@pytest.mark.parametrize('name', _LOOKUPS)
def test_a_gather_from_a_value_reads_rows(table, name):
  look_up, expected = _LOOKUPS[name]

  @tf.function
  def function(ids):
    return look_up(_noted(table), ids)

  spec = tf.TensorSpec([None], tf.int64)
  assert 'ResourceGather' in _kinds(function, spec)
  assert 'GatherV2' not in _kinds(function, spec)
  found = function(_IDS)
  assert found.dtype == expected.dtype
  np.testing.assert_array_equal(found, expected)


def _after_a_write(table):
  value = _noted(table)
  table.assign(tf.zeros_like(table))
  return tf.gather(value, _IDS)


def _outside_of_a_loop(table):
  value = _noted(table)

  def body(i, total):
    total += tf.gather(value, _IDS)
    table.assign(tf.zeros_like(table))
    return i + 1, total

  return tf.while_loop(lambda i, _: i < 1, body, (0, tf.zeros([4, 4])))[1]


@pytest.mark.parametrize('read', [_after_a_write, _outside_of_a_loop])
def test_a_value_that_is_of_the_past_is_kept(table, read):
  function = tf.function(lambda: read(table))
  assert 'ResourceGather' not in _kinds(function)
  np.testing.assert_array_equal(function(), _TABLE[_IDS])


_OTHERS = {
  'by column': lambda value: tf.gather(value, [1, 0], axis=1),
  'by batch': lambda value: tf.gather(value[:2], [[1], [0]], batch_dims=1),
  'of what is computed': lambda value: tf.gather(value * 2.0, [1, 0]),
  'at an index': lambda value: value[tf.size(value) // 1000],
}


@pytest.mark.parametrize('name', _OTHERS)
def test_other_gathers_are_told(table, name):
  found = []

  @tf.function
  def function():
    value = _noted(table)
    result = _OTHERS[name](value)
    found.append(gathers.is_gathered_from(value))
    return result

  function.get_concrete_function()
  assert found == [name != 'by batch']


def test_what_a_matrix_product_uses_is_no_table(table):
  @tf.function
  def function():
    value = _noted(table)
    result = tf.ones([1, 10_000]) @ value
    assert not gathers.is_gathered_from(value)
    assert graphs.is_used(value)
    return result

  function.get_concrete_function()


def test_constants_of_outside_are_gathered_from():
  constant = tf.constant(_TABLE)
  found = tf.function(lambda ids: tf.gather(constant, ids))(_IDS)
  np.testing.assert_array_equal(found, _TABLE[_IDS])


def test_small_values_stay_whole():
  small = tf.Variable(_TABLE[:100])
  function = tf.function(lambda: tf.gather(_noted(small), [1, 0]))
  assert _kinds(function) == {'GatherV2'}


def test_what_only_passes_a_value_on_does_not_use_it(table):
  @tf.function
  def function():
    value = tf.convert_to_tensor(table)
    joined = tf.concat([tf.identity(value), value], axis=0)
    assert not graphs.is_used(value)
    result = joined + 1.0
    assert graphs.is_used(value)
    return result

  function.get_concrete_function()


def test_the_terms_of_a_gradient_are_found():
  table = tf.Variable(_TABLE[:3])

  @tf.function
  def function():
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(table * table)
      loss += tf.reduce_sum(tf.nn.embedding_lookup(table, [2, 0]))
    gradient = tape.gradient(loss, table)
    terms = graphs.terms(gradient)
    kinds = {isinstance(term, tf.IndexedSlices) for term in terms}
    assert kinds == {True, False}
    return gradient

  function.get_concrete_function()


def test_a_vectorized_loop_is_known_by_its_scope():
  found = []

  def body(i):
    found.append(reads.is_in_vectorized_loop())
    return i

  @tf.function
  def function():
    return tf.vectorized_map(body, tf.range(3))

  function.get_concrete_function()
  assert found == [True]
  tf.function(lambda: body(0)).get_concrete_function()
  assert found == [True, False]


def test_internals_are_there():
  for function in (array_ops.gather, array_ops.gather_nd):
    assert 'gen_array_ops.gather' in inspect.getsource(function)
  for name in ('gather_v2', 'gather_nd'):
    theirs = inspect.unwrap(getattr(gen_array_ops, name))
    parameters = list(inspect.signature(theirs).parameters)
    assert parameters[:2] == ['params', 'indices']
  parameters = inspect.signature(
    inspect.unwrap(gen_array_ops.gather_v2)
  ).parameters
  assert list(parameters) == [
    *('params', 'indices', 'axis', 'batch_dims', 'name')
  ]
  source = inspect.getsource(backprop_util.AggregateIndexedSlicesGradients)
  assert 'add_n(grads)' in source
  source = inspect.getsource(indexed_slices)
  assert 'unsorted_segment_sum' in source
  assert 'name_scope("loop_body")' in inspect.getsource(parallel)
