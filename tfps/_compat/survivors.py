"""Variables that are read although their ps is being replaced.

What a program does with a variable outside of functions, such as a callback of
Keras' that reads the number of iterations, goes through the methods below. What
it writes is written to the variable's twin, too, if it has one.
"""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import handles
from tfps._compat import replicated_writes

Surviving = Callable[[Callable[[], Any]], Any]


def make_survive(variable: Any, surviving: Surviving) -> None:
  """Has a variable's reads, and its assignment, done by `surviving`.

  It may call what it is given again. That would be wrong of `assign_add`.

  Args:
    variable: a `tf.Variable`, or one that TensorFlow has wrapped.
    surviving: calls a function and returns its result.
  """
  handles.note_functions()
  inner = handles.inner(variable)
  kind: Any = type(inner)
  inner.__class__ = _survivor(kind)
  inner._tfps_surviving = surviving


@functools.cache
def _survivor(kind: Any) -> Any:
  class Survivor(kind):
    _tfps_surviving: Surviving

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> Any:
      read = functools.partial(super()._read_variable_op, *args, **kwargs)
      if not tf.executing_eagerly():
        return read()
      # What has been read is still on the ps until somebody asks for it.
      return self._tfps_surviving(lambda: tf.identity(read()))

    def assign(self, *args: Any, **kwargs: Any) -> Any:
      assign = functools.partial(super().assign, *args, **kwargs)
      if not tf.executing_eagerly():
        return assign()
      assigned = self._tfps_surviving(assign)
      replicated_writes.repeat(self, 'assign', *args, **kwargs)
      return assigned

  for name, method in replicated_writes.writing_to_both(kind).items():
    setattr(Survivor, name, method)
  Survivor.__name__ = kind.__name__
  Survivor.__qualname__ = kind.__qualname__
  return Survivor
