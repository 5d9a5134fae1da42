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
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import shared_variables

# By identity, the functions of this process that still exist.
_FUNCTIONS: dict[int, 'weakref.ref[Any]'] = {}


@functools.cache
def note_functions() -> None:
  """Starts to record the functions that are traced in this process.

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
  # Old handles live on in this list: else their ids could be reused.
  for own, _, handle in fresh:
    own._handle = handle
  _replace_captures({id(old): handle for _, old, handle in fresh})


def _fresh(variable: Any) -> tf.Tensor:
  if isinstance(variable, shared_variables.NamedVariable):
    return variable.memory.handle(shape=variable.shape, dtype=variable.dtype)
  return resource_variable_ops.UninitializedVariable(
    shape=variable.shape, dtype=variable.dtype, name=variable._handle_name
  )._handle


def inner(variable: Any) -> Any:
  """Returns the variable inside TensorFlow's wrappers of distributed ones."""
  while hasattr(variable, '_v'):
    variable = variable._v
  return variable


def _replace_captures(new: dict[int, tf.Tensor]) -> None:
  for reference in list(_FUNCTIONS.values()):
    function = reference()
    if function is not None:
      # It has no such attribute while another thread is still making it.
      captured = getattr(function, 'captured_inputs', ())
      if any(id(tensor) in new for tensor in captured):
        function.set_external_captures(
          [new.get(id(tensor), tensor) for tensor in captured]
        )
