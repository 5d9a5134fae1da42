"""New memory for variables whose ps has lost it.

A variable, and every function that was traced with it, holds a handle of its
memory. Once the ps has restarted, that memory is gone, but neither the variable
nor the functions need to be recreated: a new handle replaces the old one in
each.
"""

from collections.abc import Iterable
import functools
from typing import Any
import weakref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import open_shapes
from tfps._compat import shared_variables

# By identity, the functions of this process that still exist.
_FUNCTIONS: dict[int, 'weakref.ref[Any]'] = {}
# By identity, the replaced handles that still exist, and what replaced them. A
# function that is being traced may hold one.
_REPLACED: dict[int, tuple['weakref.ref[Any]', tf.Tensor]] = {}


class RenewedError(tf.errors.UnavailableError):
  """A variable got new memory while a function that uses it was traced."""

  def __init__(self) -> None:
    super().__init__(
      None,
      None,
      'A ps was restored while a function was traced that uses its variables, '
      'so that the function does not order what it does to them. Trace it '
      'again.',
    )


@functools.cache
def note_functions() -> None:
  """Starts to record the functions that are traced in this process.

  One that is traced while `renew` is called gets the new handles once it is
  made.

  It must be called before variables are made that `renew` may get. TensorFlow
  has no list of its functions, users may have made some, and finding them among
  all objects takes a tenth of a second or more.
  """
  kind = concrete_function.ConcreteFunction
  new = kind.__new__

  @functools.wraps(new)
  def noting(cls: Any, *args: Any, **kwargs: Any) -> Any:
    # Here, as those of loaded models are copied without a call of `__init__`.
    function = new(cls)
    key = id(function)
    _FUNCTIONS[key] = weakref.ref(function, lambda _: _FUNCTIONS.pop(key, None))
    return function

  kind.__new__ = staticmethod(noting)
  init = kind.__init__

  @functools.wraps(init)
  def holding_new(function: Any, *args: Any, **kwargs: Any) -> None:
    init(function, *args, **kwargs)
    if _replace_captures(function):
      raise RenewedError

  kind.__init__ = holding_new


def renew(variables: Iterable[Any]) -> None:
  """Gives variables uninitialized memory on the devices they are on.

  Args:
    variables: made after `note_functions` was called.

  Raises:
    tf.errors.OpError: a ps is lost; all variables are unchanged.
  """
  fresh = []
  for variable in variables:
    own = inner(variable)
    with tf.init_scope(), tf.device(variable.device):
      fresh.append((own, own._handle, _fresh(own)))
  for own, old, handle in fresh:
    own._handle = handle
    _note_replaced(old, handle)
  # A function that is made from now on finds them replaced by itself.
  for reference in list(_FUNCTIONS.values()):
    function = reference()
    # It has no such attribute while another thread is still making it.
    if hasattr(function, '_captured_inputs'):
      _replace_captures(function)


def _fresh(variable: Any) -> tf.Tensor:
  shape = open_shapes.of_handle(variable)
  if isinstance(variable, shared_variables.NamedVariable):
    return variable.memory.handle(shape=shape, dtype=variable.dtype)
  return resource_variable_ops.UninitializedVariable(
    shape=shape, dtype=variable.dtype, name=variable._handle_name
  )._handle


def scratch(shape: Any, dtype: tf.DType) -> Any:
  """Returns an uninitialized variable on the current device.

  `tf.Variable` would ask the strategy for it. Its memory is freed with it.

  Args:
    shape: its shape.
    dtype: its dtype.
  """
  with tf.init_scope():
    return resource_variable_ops.UninitializedVariable(
      shape=shape, dtype=dtype, trainable=False
    )


def describe(handle: tf.Tensor, like: tf.Tensor) -> None:
  """Gives a handle the type and shape of what another one is for.

  A function's argument has none, so that shapes of values read by it would be
  unknown while the function is traced.

  Args:
    handle: argument of a function.
    like: handle of a similar resource.
  """
  handle_data_util.copy_handle_data(like, handle)


def inner(variable: Any) -> Any:
  """Returns the variable inside TensorFlow's wrappers of distributed ones."""
  while hasattr(variable, '_v'):
    variable = variable._v
  return variable


def _note_replaced(old: tf.Tensor, new: tf.Tensor) -> None:
  key = id(old)
  # It may die after this module, at the end of the process.
  forget = functools.partial(_REPLACED.pop, key, None)
  _REPLACED[key] = weakref.ref(old, lambda _: forget()), new


def _replace_captures(function: Any) -> bool:
  """Replaces the old handles that a function has captured.

  Returns:
    Whether it has captured the old and the new handle of some variable.
  """
  captured = function._captured_inputs
  if not any(id(tensor) in _REPLACED for tensor in captured):
    return False
  new = [_newest(tensor) for tensor in captured]
  function.set_external_captures(new)
  return len(set(map(id, new))) < len(set(map(id, captured)))


def _newest(handle: Any) -> Any:
  while id(handle) in _REPLACED:
    _, handle = _REPLACED[id(handle)]
  return handle
