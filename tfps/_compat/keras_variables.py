"""Values of Keras' variables: creation, assignment and checkpoints of shards.

Variables of other strategies than ours, and of none, keep Keras' methods.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import functools
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import execution_variables
from tfps._compat import large_values
from tfps._compat import open_shapes
from tfps._compat import reads

# Keras' names of the table of an `Embedding` and of an optimizer's counter,
# which nothing else distinguishes from other variables.
TABLE = 'embeddings'
COUNTER = 'iteration'
# Method of an initializer: the context in which to make the variable.
MAKING_CONTEXT = 'tfps_making'

# The initial value and the shape of the variable that Keras makes.
_MAKING: contextvars.ContextVar[tuple[Any, Any] | None] = (
  contextvars.ContextVar('tfps_making_for_keras', default=None)
)


def take_part(sharded_type: type) -> None:
  """Replaces methods of Keras' variables, once Keras is imported.

  Args:
    sharded_type: the class of sharded values.
  """
  if 'keras' in sys.modules:
    _replace_methods(sharded_type)


def value_of(variable: Any) -> Any:
  """Returns the `tf.Variable` of a Keras variable, not cast to any type.

  It is None while Keras finds out what the layers of a model return, and makes
  the variables afterwards.
  """
  return variable._value


def keep_here(variable: Any) -> None:
  """Lets executions use copies of a Keras variable that this process holds.

  Metrics and seeds that are made in a strategy's scope have them already.
  """
  value = variable._value
  is_plain = isinstance(value, resource_variable_ops.ResourceVariable)
  if is_plain and not reads.is_on_ps(value):
    variable._value = execution_variables.ExecutionVariable(variable=value)


def is_making() -> bool:
  """Returns whether this thread is creating the value of a Keras variable."""
  return _MAKING.get() is not None


def shape_of(initial_value: Any) -> tf.TensorShape | None:
  """Returns the shape of a value that this thread is creating for Keras.

  Keras knows it, but does not tell TensorFlow, which would have to compute the
  initial value.

  Args:
    initial_value: of the variable.

  Returns:
    The shape; None for any other value, or one whose shape Keras asks for.
  """
  value, shape = _MAKING.get() or (None, None)
  if value is None or value is not initial_value or shape is None:
    return None
  return tf.TensorShape(shape)


@functools.cache
def _replace_methods(sharded_type: type) -> None:
  from keras.src import backend
  from keras.src.backend.common import stateless_scope

  class Sharded(backend.Variable):
    """Keras variable of which each shard is saved and restored on its own.

    Keras variables delegate to their value by the newer of TensorFlow's two
    checkpoint interfaces, which restores only the first of several parts; see
    `saveable_objects_from_trackable`. Shards use the older one. TensorFlow
    chooses the interface by the class.
    """

    def _gather_saveables_for_checkpoint(self) -> Any:
      return self._value._gather_saveables_for_checkpoint()

  def initialize(theirs: Any, self: Any, value: Any) -> None:
    with _making(value, getattr(self, '_shape', None)):
      theirs(self, value)
    is_sharded = isinstance(self._value, sharded_type)
    if is_sharded and type(self) is backend.Variable:
      self.__class__ = Sharded

  def initialize_with_initializer(
    theirs: Any, self: Any, initializer: Any
  ) -> None:
    array = _array(initializer, self._shape) if _is_ours() else None
    # Keras may call this long after the variable's layer has asked for it.
    with getattr(initializer, MAKING_CONTEXT, contextlib.nullcontext)():
      if array is not None:
        self._initialize(_as_made_by_keras(lambda: array))
      elif _is_constant(initializer) and _is_ours():
        self._initialize(_in_parts(initializer, self._shape, self._dtype))
      else:
        theirs(self, initializer)

  def assign(theirs: Any, self: Any, value: Any) -> Any:
    if self._value is not None and open_shapes.has_open_rows(self._value):
      # Keras would compare the shape with that of the beginning.
      self._value.assign(self._convert_to_tensor(value, dtype=self.dtype))
      return value
    is_array = isinstance(value, np.ndarray) and self._value is not None
    if (
      not is_array
      or value.shape != tuple(self.shape)
      or stateless_scope.in_stateless_scope()
      or not large_values.is_prepared(self._value)
    ):
      return theirs(self, value)
    self._value.assign(value)  # as a tensor, it would be copied
    return value

  _replace(backend.Variable, 'assign', assign)
  _replace(backend.Variable, '_initialize', initialize)
  _replace(
    backend.Variable,
    '_initialize_with_initializer',
    initialize_with_initializer,
  )


def _replace(owner: Any, name: str, method: Callable[..., Any]) -> None:
  theirs = getattr(owner, name)

  @functools.wraps(theirs)
  def ours(self: Any, *args: Any, **kwargs: Any) -> Any:
    return method(theirs, self, *args, **kwargs)

  setattr(owner, name, ours)


@contextlib.contextmanager
def _making(value: Any, shape: Any) -> Iterator[None]:
  token = _MAKING.set((value, shape))
  try:
    yield
  finally:
    _MAKING.reset(token)


def _is_ours() -> bool:
  return hasattr(tf.distribute.get_strategy(), 'keras_functions')


def _is_constant(initializer: Any) -> bool:
  """Returns whether an initializer gives all elements the same value."""
  from keras.src.initializers import constant_initializers

  if type(initializer) is constant_initializers.Constant:
    return isinstance(initializer.value, int | float)
  kinds = (constant_initializers.Zeros, constant_initializers.Ones)
  return type(initializer) in kinds


def _array(initializer: Any, shape: Any) -> Any:
  """Returns the array that an initializer gives a variable, or None.

  In the initializer it would be copied, and into the graph in which its shape
  is looked up.
  """
  from keras.src.initializers import constant_initializers

  kinds = constant_initializers.Constant, tf.constant_initializer
  value = getattr(initializer, 'value', None)
  if type(initializer) not in kinds or not isinstance(value, np.ndarray):
    return None
  return value if value.shape == tuple(shape) else None


def _in_parts(initializer: Any, shape: Any, dtype: str) -> Callable[..., Any]:
  """Returns an initial value that can be made in parts, one for each shard.

  Its arguments are those that TensorFlow gives to initial values of shards.
  """

  def value(partition_shape: Any = None, partition_offset: Any = None) -> Any:
    del partition_offset
    return initializer(partition_shape or shape, dtype=dtype)

  return _as_made_by_keras(value)


def _as_made_by_keras(value: Callable[..., Any]) -> Callable[..., Any]:
  """Marks an initial value; `_compat.keras.is_metric` looks for that."""
  value.__module__ = 'keras.src.backend'
  return value
