"""Variables whose number of rows is open, with handles of a static shape.

A server of TensorFlow ends with a failed check if it is sent the handle of a
variable that was made with an open shape. So the handle has the shape that the
variable begins with, and only the Python object leaves the number of rows open.
No kernel compares a value with the handle's shape.
"""

from typing import Any

import tensorflow as tf


def open_rows(variable: Any) -> None:
  """Leaves the number of a variable's rows open.

  Args:
    variable: with at least one dimension, not inside TensorFlow's wrappers.
  """
  if not has_open_rows(variable):
    variable._tfps_handle_shape = variable.shape
    variable._shape = tf.TensorShape([None, *variable.shape[1:]])


def has_open_rows(variable: Any) -> bool:
  """Returns whether the number of a variable's rows is open."""
  shape = variable.shape
  return bool(shape.rank) and shape[0] is None


def of_handle(variable: Any) -> tf.TensorShape:
  """Returns the shape that a variable's handle is to have."""
  shape: tf.TensorShape = getattr(
    variable, '_tfps_handle_shape', variable.shape
  )
  return shape


def read(variable: Any) -> tf.Tensor:
  """Returns a variable's value, in a graph, with an open number of rows.

  From the handle's shape, TensorFlow would compute what depends on the value's.
  """
  value = tf.raw_ops.ReadVariableOp(
    resource=variable.handle, dtype=variable.dtype
  )
  shape = [None, *value.shape[1:]]
  return tf.raw_ops.PlaceholderWithDefault(input=value, shape=shape)
