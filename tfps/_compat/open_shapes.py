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


def follow(variable: Any, other: Any) -> None:
  """Leaves the number of a variable's rows open, as it is that of another.

  Args:
    variable: as for `open_rows`, such as an optimizer's slot.
    other: the variable whose rows it has an element for.
  """
  open_rows(variable)
  variable._tfps_follows = other


def followed(variable: Any) -> Any:
  """Returns the variable that `follow` was given for one, or None."""
  return getattr(variable, '_tfps_follows', None)


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


def present(variable: Any) -> tf.Tensor:
  """Returns the shape that a variable has at present, an int64 vector.

  In a graph, the shape of its value would be that of the handle: TensorFlow
  knows that one when it optimizes.
  """
  return tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64)


def num_rows(variable: Any) -> tf.Tensor:
  """Returns how many rows a variable has at present, an int64 scalar."""
  rows: tf.Tensor = tf.unstack(present(variable), num=variable.shape.rank)[0]
  return rows
