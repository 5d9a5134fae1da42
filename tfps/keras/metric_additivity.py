"""Finds out whether a metric is additive: batches only add to its variables.

If so, batches can be evaluated anywhere and in any order. Metrics do not
declare it, so the graph of their update is examined.
"""

from collections.abc import Set

import tensorflow as tf

_PASSED_THROUGH = {'Cast', 'EnsureShape', 'Identity', 'Reshape', 'Squeeze'}
_ADDITIONS = {'Add', 'AddN', 'AddV2'}
_ADDS_IN_PLACE = {'AssignAddVariableOp', 'AssignSubVariableOp'}
_READS = {'ReadVariableOp'}


def is_additive(handle: tf.Tensor, operations: Set[tf.Operation]) -> bool:
  """Returns whether operations only read a variable and add to it.

  Args:
    handle: the variable's handle, in the graph of the operations.
    operations: operations, with or without the handle among their inputs.
  """
  return all(
    _adds(operation, handle)
    for operation in handle.consumers()
    if operation in operations
  )


def _adds(operation: tf.Operation, handle: tf.Tensor) -> bool:
  if operation.type in _ADDS_IN_PLACE | _READS:
    return True
  return operation.type == 'AssignVariableOp' and _is_sum_with(
    operation.inputs[1], handle
  )


def _is_sum_with(value: tf.Tensor, handle: tf.Tensor) -> bool:
  """Returns whether a value is the variable plus or minus another one."""
  operation = _source(value)
  if operation.type in _ADDITIONS:
    return any(_is_read_of(term, handle) for term in operation.inputs)
  is_difference = operation.type == 'Sub'
  return is_difference and _is_read_of(operation.inputs[0], handle)


def _is_read_of(value: tf.Tensor, handle: tf.Tensor) -> bool:
  operation = _source(value)
  return operation.type in _READS and operation.inputs[0] is handle


def _source(value: tf.Tensor) -> tf.Operation:
  """Returns the operation that computes a value, before casts and reshapes."""
  operation = value.op
  while operation.type in _PASSED_THROUGH:
    operation = operation.inputs[0].op
  return operation
