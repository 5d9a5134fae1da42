"""Whether a metric adds up: what it gathers from two batches is a sum.

If so, batches can be evaluated anywhere and in any order. Nothing in a metric
says so, but the graph of its update does.
"""

from collections.abc import Iterable

import tensorflow as tf

_PASSED_THROUGH = {'Cast', 'EnsureShape', 'Identity', 'Reshape', 'Squeeze'}
_ADDITIONS = {'Add', 'AddN', 'AddV2'}
_ADDS_IN_PLACE = {'AssignAddVariableOp', 'AssignSubVariableOp'}
_READS = {'ReadVariableOp'}


def adds_up(handle: tf.Tensor, operations: Iterable[tf.Operation]) -> bool:
  """Whether operations do nothing to a variable but read it and add to it.

  Args:
    handle: of the variable, in the graph of the operations.
    operations: to look at; those that do not use the handle do not matter.
  """
  return all(
    _adds(operation, handle)
    for operation in operations
    if any(tensor is handle for tensor in operation.inputs)
  )


def _adds(operation: tf.Operation, handle: tf.Tensor) -> bool:
  if operation.type in _ADDS_IN_PLACE | _READS:
    return True
  return operation.type == 'AssignVariableOp' and _is_sum_with(
    operation.inputs[1], handle
  )


def _is_sum_with(value: tf.Tensor, handle: tf.Tensor) -> bool:
  """Whether a value is the variable's own plus something else."""
  operation = _source(value)
  if operation.type in _ADDITIONS:
    return any(_is_read_of(term, handle) for term in operation.inputs)
  is_difference = operation.type == 'Sub'
  return is_difference and _is_read_of(operation.inputs[0], handle)


def _is_read_of(value: tf.Tensor, handle: tf.Tensor) -> bool:
  operation = _source(value)
  return operation.type in _READS and operation.inputs[0] is handle


def _source(value: tf.Tensor) -> tf.Operation:
  """The operation that a value comes from, whatever form it was brought to."""
  operation = value.op
  while operation.type in _PASSED_THROUGH:
    operation = operation.inputs[0].op
  return operation
