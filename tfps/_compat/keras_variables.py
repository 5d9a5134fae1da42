"""Sharded values of Keras' variables: creation and checkpoints.

Variables of other strategies than ours, and of none, keep Keras' methods.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import functools
import sys
from typing import Any

import tensorflow as tf

# Keras' names of the table of an `Embedding` and of an optimizer's counter,
# which nothing else distinguishes from other variables.
TABLE = 'embeddings'
COUNTER = 'iteration'

_MAKING = contextvars.ContextVar('tfps_making_for_keras', default=False)


def take_part(sharded_type: type) -> None:
  """Replaces methods of Keras' variables, once Keras is imported.

  Args:
    sharded_type: the class of sharded values.
  """
  if 'keras' in sys.modules:
    _replace_methods(sharded_type)


def is_making() -> bool:
  """Returns whether this thread is creating the value of a Keras variable."""
  return _MAKING.get()


@functools.cache
def _replace_methods(sharded_type: type) -> None:
  from keras.src import backend

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
    with _making():
      theirs(self, value)
    is_sharded = isinstance(self._value, sharded_type)
    if is_sharded and type(self) is backend.Variable:
      self.__class__ = Sharded

  def initialize_with_initializer(
    theirs: Any, self: Any, initializer: Any
  ) -> None:
    if not _is_constant(initializer) or not _is_ours():
      theirs(self, initializer)
      return
    self._initialize(_in_parts(initializer, self._shape, self._dtype))

  _replace(backend.Variable, '_initialize', initialize)
  _replace(
    backend.Variable,
    '_initialize_with_initializer',
    initialize_with_initializer,
  )


def _replace(owner: Any, name: str, method: Callable[..., None]) -> None:
  theirs = getattr(owner, name)

  @functools.wraps(theirs)
  def ours(self: Any, *args: Any, **kwargs: Any) -> None:
    method(theirs, self, *args, **kwargs)

  setattr(owner, name, ours)


@contextlib.contextmanager
def _making() -> Iterator[None]:
  token = _MAKING.set(True)
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


def _in_parts(initializer: Any, shape: Any, dtype: str) -> Callable[..., Any]:
  """Returns an initial value that can be made in parts, one for each shard.

  Its arguments are those that TensorFlow gives to initial values of shards.
  """

  def value(partition_shape: Any = None, partition_offset: Any = None) -> Any:
    del partition_offset
    return initializer(partition_shape or shape, dtype=dtype)

  # `_compat.keras.is_metric` recognizes Keras' variables by this.
  value.__module__ = initializer.__module__
  return value
