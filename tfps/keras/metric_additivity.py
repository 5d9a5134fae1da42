"""Finds out whether a metric is additive: batches only add to its variables.

If so, batches can be evaluated anywhere and in any order. Metrics do not
declare it, so the graph of their update is examined.
"""

from collections.abc import Sequence

import tensorflow as tf

_PASSED_THROUGH = {'Cast', 'EnsureShape', 'Identity', 'Reshape', 'Squeeze'}
_ADDITIONS = {'Add', 'AddN', 'AddV2'}
_ADDS_IN_PLACE = {'AssignAddVariableOp', 'AssignSubVariableOp'}
_READS = {'ReadVariableOp'}


def find(
  handles: Sequence[tf.Tensor], operations: Sequence[tf.Operation]
) -> list[bool]:
  """Returns which variables operations only read and add to.

  What is added to any of them must not depend on what a variable has gathered,
  or else the one that is read is not additive.

  Args:
    handles: the variables' handles, in the graph of the operations.
    operations: operations in the order in which they were made.
  """
  places = {id(handle): i for i, handle in enumerate(handles)}
  found = [True] * len(handles)
  # By operations that depend on what variables have gathered, which ones.
  sources: dict[tf.Operation, set[int]] = {}
  for operation in operations:
    read = {places[id(t)] for t in operation.inputs if id(t) in places}
    for i in read:
      added = _added(operation, handles[i])
      found[i] &= added is not None
      for term in added or ():
        for source in sources.get(term.op, ()):
          found[source] = False
    for term in operation.inputs:
      read |= sources.get(term.op, set())
    if read:
      sources[operation] = read
  return found


def _added(
  operation: tf.Operation, handle: tf.Tensor
) -> list[tf.Tensor] | None:
  """Returns what an operation adds to a variable; None if it does not add."""
  if operation.type in _READS:
    return []
  if operation.type in _ADDS_IN_PLACE:
    return [operation.inputs[1]]
  if operation.type == 'AssignVariableOp':
    return _others_in_sum(operation.inputs[1], handle)
  return None


def _others_in_sum(
  value: tf.Tensor, handle: tf.Tensor
) -> list[tf.Tensor] | None:
  """Returns the terms beside the variable; None if a value is no such sum."""
  operation = _source(value)
  terms = list(operation.inputs)
  if operation.type in _ADDITIONS:
    owns = [i for i, term in enumerate(terms) if _is_read_of(term, handle)]
  else:
    is_difference = operation.type == 'Sub' and _is_read_of(terms[0], handle)
    owns = [0] if is_difference else []
  if not owns:
    return None
  del terms[owns[0]]
  return terms


def _is_read_of(value: tf.Tensor, handle: tf.Tensor) -> bool:
  operation = _source(value)
  return operation.type in _READS and operation.inputs[0] is handle


def _source(value: tf.Tensor) -> tf.Operation:
  """Returns the operation that computes a value, before casts and reshapes."""
  operation = value.op
  while operation.type in _PASSED_THROUGH:
    operation = operation.inputs[0].op
  return operation
