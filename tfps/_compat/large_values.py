"""Variables whose large values reach their device in another way."""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import handles

# Gets a value and the variable that it is for, and returns what to assign.
Prepare = Callable[[Any, Any], Any]


def prepare_with(variable: Any, prepare: Prepare) -> None:
  """Makes a variable assign, outside of functions, what a function returns.

  Args:
    variable: a `tf.Variable`, or one that TensorFlow has wrapped.
    prepare: called on the variable's device.
  """
  inner = handles.inner(variable)
  kind: Any = type(inner)
  inner.__class__ = _preparing(kind)
  inner._tfps_prepare = prepare


def copy_to(variable: Any, other: Any) -> None:
  """Makes another variable assign as a variable does."""
  prepare = getattr(handles.inner(variable), '_tfps_prepare', None)
  if prepare is not None:
    prepare_with(other, prepare)


def is_prepared(variable: Any) -> bool:
  """Returns whether a variable, or its first shard, has such a function."""
  first = getattr(variable, 'variables', [variable])[0]
  return hasattr(handles.inner(first), '_tfps_prepare')


@functools.cache
def _preparing(kind: Any) -> Any:
  class Preparing(kind):
    _tfps_prepare: Prepare

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
      if tf.executing_eagerly():
        with tf.device(self.device):
          value = self._tfps_prepare(value, self)
      return super().assign(value, *args, **kwargs)

  Preparing.__name__ = kind.__name__
  Preparing.__qualname__ = kind.__qualname__
  return Preparing
