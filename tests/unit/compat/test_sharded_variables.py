"""Canaries for what `tfps._compat.strategy` relies upon."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import sharded_variable
from tensorflow.python.eager import backprop
from tensorflow.python.framework import composite_tensor
from tensorflow.python.framework import composite_tensor_gradient
from tensorflow.python.saved_model import save_context

from tfps._compat import strategy as compat

Stock = sharded_variable.ShardedVariable


@pytest.fixture
def table():
  return Stock([tf.Variable([[1.0], [2.0]]), tf.Variable([[3.0]])])


def test_the_public_class_is_the_one_that_strategies_make():
  assert tf.__internal__.distribute.ShardedVariable is Stock
  assert issubclass(Stock, composite_tensor.CompositeTensor)


SOURCES = {
  'a tape asks a composite for what to differentiate by': (
    backprop.GradientTape.gradient,
    'composite_tensor_gradient.get_flat_tensors_for_gradients(',
  ),
  'a composite says it by this attribute': (
    composite_tensor_gradient.get_flat_tensors_for_gradients,
    '_get_tensors_for_gradient',
  ),
  'a tape takes the handle of what acts as a resource variable': (
    backprop.GradientTape.gradient,
    'backprop_util.IsTrainable',
  ),
  'the spec is made of the shards': (
    Stock._type_spec.fget,
    'ShardedVariableSpec(',
  ),
  'shards become one variable in a SavedModel': (
    Stock.variables.fget,
    'if save_context.in_save_context():',
  ),
  'lookups go by dispatch': (
    sharded_variable.embedding_lookup,
    'params.variables',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_the_stock_code_is_what_we_build_on(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


def test_a_composite_gradient_is_asked_for_components_and_put_together():
  assert {'get_gradient_components', 'replace_gradient_components'} <= set(
    composite_tensor_gradient.CompositeTensorGradient.__abstractmethods__
  )
  assert issubclass(
    compat.CompositeTensorGradient,
    composite_tensor_gradient.CompositeTensorGradient,
  )


def test_the_spec_serializes_to_its_shards(table):
  spec = table._type_spec
  assert isinstance(spec, compat.ShardedVariableSpec)
  assert [shard.shape for shard in spec._serialize()] == [[2, 1], [1, 1]]
  copied = spec._from_components(spec._to_components(table))
  np.testing.assert_array_equal(copied.numpy(), table.numpy())


def test_shards_and_their_rows_are_found_by_these_names(table):
  assert table._variables is table.variables
  local, shard_of = table._decompose_indices(tf.constant([2, 0, 1]))
  assert [list(rows.numpy()) for rows in local] == [[0, 1], [0]]
  assert list(shard_of.numpy()) == [1, 0, 0]
  slices = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([2, 2]))
  parts = table._decompose_indexed_slices(slices)
  assert [list(part.indices.numpy()) for part in parts] == [[], [0, 0]]


def test_stock_shards_return_rows_in_another_order(table):
  # Once TensorFlow mends this, `tfps.sharded` can shrink.
  rows = table.sparse_read(tf.constant([2, 0]))
  assert rows.numpy().ravel().tolist() == [1.0, 3.0]


def test_stock_shards_have_no_gradient(table):
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.convert_to_tensor(table))
  with pytest.raises(AttributeError, match='handle'):
    tape.gradient(loss, table)


def test_saving_is_known():
  assert not compat.is_saving()
  options = tf.saved_model.SaveOptions()
  with save_context.save_context(options):
    assert compat.is_saving()
