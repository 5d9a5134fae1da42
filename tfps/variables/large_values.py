"""Large values on their way to variables on ps: sent in slices.

In one piece, a value is copied into the graph or the message several times, and
cannot exceed the 2 GB of a message. `row_writes.send` sends slices to memory of
its own on the ps; the variable gets that in one assignment, so that nobody sees
a part of the value, and it stays uninitialized if this process ends before.
"""

from collections.abc import Callable
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import large_values as compat
from tfps.variables import row_writes


def is_large(value: Any) -> bool:
  """Returns whether a value is sent in slices.

  Args:
    value: an array or a tensor of this process; anything else is not.
  """
  if tf.is_tensor(value):
    if not isinstance(value, tf.__internal__.EagerTensor):
      return False
    job = tf.DeviceSpec.from_string(value.device or '').job
    is_here = job != 'ps'
    num_bytes = (value.shape.num_elements() or 0) * value.dtype.size
  else:
    is_here = isinstance(value, np.ndarray) and value.dtype.kind in 'biufcV'
    num_bytes = value.nbytes if is_here else 0
  return is_here and value.ndim > 0 and num_bytes > row_writes.SLICE_BYTES


def prepare(value: Any, variable: Any) -> Any:
  """Returns a value that a variable can be assigned, on the current device.

  Args:
    value: the value.
    variable: the variable.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  if is_large(value) and tuple(value.shape) == tuple(variable.shape):
    return _sent(value, variable.dtype)
  return value


def divisible(value: Any) -> Any:
  """Returns an initial value that makes its parts.

  Args:
    value: an initial value; unchanged unless it is large.
  """
  if not is_large(value):
    return value

  # As TensorFlow calls initial values of shards.
  def part(partition_shape: Any = None, partition_offset: Any = None) -> Any:
    if partition_shape is None:
      return value
    first = partition_offset[0]
    with tf.device(None):  # in this process
      return value[first : first + partition_shape[0]]

  return part


def creator(make: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a variable creator that sends large values in slices.

  Args:
    make: the creator to call; it calls initial values that are functions on the
      variable's device.
  """

  def made(**kwargs: Any) -> Any:
    value = kwargs.get('initial_value')
    # TensorFlow looks at the type of those that restore a checkpoint.
    if is_large(value) or (
      callable(value) and not hasattr(value, 'checkpoint_position')
    ):
      value = functools.partial(_initial, value, kwargs.get('dtype'))
    variable = make(**{**kwargs, 'initial_value': value})
    num_bytes = (variable.shape.num_elements() or 0) * variable.dtype.size
    if num_bytes > row_writes.SLICE_BYTES and variable.dtype != tf.string:
      compat.prepare_with(variable, prepare)
    return variable

  return made


def _initial(value: Any, dtype: Any) -> Any:
  found = value() if callable(value) else value
  if not is_large(found) or not tf.executing_eagerly():
    return found
  return _sent(found, tf.as_dtype(dtype or found.dtype))


def _sent(value: Any, dtype: tf.DType) -> Any:
  given = tf.as_dtype(value.dtype)
  is_alike = (given.is_floating and dtype.is_floating) or (
    given.is_integer and dtype.is_integer
  )
  if given == dtype or (is_alike and not tf.is_tensor(value)):
    return row_writes.send(value, dtype)
  return value  # TensorFlow tells if it cannot convert it
