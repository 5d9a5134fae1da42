"""Dispatch of Keras' optimizers to functions of our strategies.

Keras' own code reads a variable's slots, computes and writes, so that workers
undo each other's updates, and does some of it on the worker.

A strategy that replaces this names a module as `keras_optimizers`, which has
the functions below. Each gets Keras' own method, the optimizer and the method's
arguments. Optimizers of other strategies, and of none, keep Keras' methods.
"""

import functools
import importlib
import sys
from typing import Any

from tfps._compat import handles
from tfps._compat import open_shapes

# Method of Keras' optimizers -> function that replaces it.
_FUNCTIONS = {
  '_backend_apply_gradients': 'apply_gradients',
  '_all_reduce_sum_gradients': 'sum_gradients',
  '_clip_gradients': 'clip_gradients',
  '_distributed_tf_update_step': 'update',
  '_apply_weight_decay': 'decay_weights',
  '_update_model_variables_moving_average': 'update_averages',
  '_overwrite_model_variables_with_average_value': 'use_averages',
}
# Likewise, of those of any backend.
_BASE = {
  'apply': 'apply',
  'save_own_variables': 'save_own_variables',
  'load_own_variables': 'load_own_variables',
}
# Likewise, of its `LossScaleOptimizer`.
_LOSS_SCALING = {
  'apply': 'apply',
  'check_finite': 'check_finite',
  'scale_loss': 'scale_loss',
  '_stateful_handle_finite_grads': 'apply_finite',
  '_stateful_handle_non_finite_grads': 'skip_step',
}

# Without such a strategy, of optimizers that update growing variables.
_BY_ROWS = 'tfps.keras.optimizers'


def take_part() -> None:
  """Replaces methods of Keras' optimizers, once Keras is imported."""
  if 'keras' in sys.modules:
    _replace_methods()


@functools.cache
def _replace_methods() -> None:
  from keras.src.backend.tensorflow import optimizer
  from keras.src.optimizers import base_optimizer
  from keras.src.optimizers import loss_scale_optimizer
  from keras.src.optimizers import nadam

  for method, function in _FUNCTIONS.items():
    _replace(optimizer.TFOptimizer, method, function)
  for method, function in _BASE.items():
    _replace(base_optimizer.BaseOptimizer, method, function)
  for method, function in _LOSS_SCALING.items():
    _replace(loss_scale_optimizer.LossScaleOptimizer, method, function)
  _open_slots(optimizer.TFOptimizer)
  # It has one more variable, which each worker's update multiplies.
  _replace(nadam.Nadam, '_backend_update_step', 'update_by_nadam')


def _open_slots(owner: Any) -> None:
  """Leaves the number of rows of slots open, if it is that of a variable."""
  theirs = owner.add_variable_from_reference

  @functools.wraps(theirs)
  def add(self: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
    made = theirs(self, reference_variable, *args, **kwargs)
    is_keras = hasattr(reference_variable, '_value')
    reference = reference_variable.value if is_keras else reference_variable
    if open_shapes.has_open_rows(reference):
      open_shapes.follow(handles.inner(made.value), reference_variable)
      importlib.import_module(_BY_ROWS).slot_made(self, made)
    return made

  owner.add_variable_from_reference = add


def _replace(owner: Any, name: str, function: str) -> None:
  theirs = getattr(owner, name)

  @functools.wraps(theirs)
  def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
    own = functools.partial(theirs, self)
    module = _module(self, args)
    if module is None:
      return own(*args, **kwargs)
    return getattr(module, function)(own, self, *args, **kwargs)

  setattr(owner, name, dispatch)


def _module(optimizer: Any, args: tuple[Any, ...]) -> Any:
  """Returns the module that replaces an optimizer's methods, or None."""
  strategy = optimizer._distribution_strategy
  name = getattr(strategy, 'keras_optimizers', None)
  if name is None and _updates_open_shapes(optimizer, args):
    name = _BY_ROWS
  return importlib.import_module(name) if name else None


def _updates_open_shapes(optimizer: Any, args: tuple[Any, ...]) -> bool:
  """Returns whether a variable may have more rows than its slots.

  Keras' own updates take both for equally long, under any strategy.

  Args:
    optimizer: the optimizer, which may not have been built.
    args: of its method.
  """
  given = [
    each for arg in args if isinstance(arg, list | tuple) for each in arg
  ]
  return any(
    open_shapes.has_open_rows(variable.value)
    for variable in (*getattr(optimizer, '_trainable_variables', ()), *given)
    if hasattr(variable, '_value')
  )
