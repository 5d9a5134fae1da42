"""Gives variables new memory where their ps has lost it.

A variable, and every function that was traced with it, holds a handle of its
memory. Once the ps has restarted, that memory is gone, but neither the variable
nor the functions need be made anew: a new handle takes the place of the old one
in each.
"""

from collections.abc import Iterable
import gc
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import shared_variables


def renew(variables: Iterable[Any]) -> None:
  """Gives variables memory without a value, on the devices they are on.

  Raises:
    tf.errors.OpError: a ps is lost; all are as they were.
  """
  fresh = []
  for variable in variables:
    own = inner(variable)
    with tf.init_scope(), tf.device(variable.device):
      fresh.append((own, own._handle, _fresh(own)))
  # Old handles live on in this list: else their ids could become others'.
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
  """The variable that TensorFlow's wrappers of distributed ones hold."""
  while hasattr(variable, '_v'):
    variable = variable._v
  return variable


def _replace_captures(new: dict[int, tf.Tensor]) -> None:
  # There is no list of them, and users may have made some.
  for candidate in gc.get_objects():
    if isinstance(candidate, concrete_function.ConcreteFunction):
      captured = candidate.captured_inputs
      if any(id(tensor) in new for tensor in captured):
        candidate.set_external_captures(
          [new.get(id(tensor), tensor) for tensor in captured]
        )
