"""Branches that are seldom taken."""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2


def seldom(
  condition: tf.Tensor,
  then: Callable[[], tf.Tensor],
  otherwise: Callable[[], tf.Tensor],
) -> tf.Tensor:
  """Returns what `tf.cond` does, in a graph.

  TensorFlow lowers a branch into the graph around it, where each of its
  operations costs time although it is not executed. This one stays a call.

  Args:
    condition: boolean scalar.
    then: makes the tensor that is returned if the condition holds.
    otherwise: makes the other one.
  """
  result = tf.cond(condition, then, otherwise)
  operation = result.op
  while operation.type == 'Identity':
    operation = operation.inputs[0].op
  assert operation.type in ('If', 'StatelessIf'), operation
  operation._set_attr(
    '_lower_using_switch_merge', attr_value_pb2.AttrValue(b=False)
  )
  return result
