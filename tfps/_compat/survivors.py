"""Variables whose eager reads and assignments survive the loss of their ps.

Accesses outside of functions, such as those of a Keras callback that reads the
number of iterations, go through the methods below. Writes also go to the
variable's replica, if it has one.

Background operations (`side_executor`) fail at a loss, as its repair waits for
their end. They may be repeated as a whole.
"""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import handles
from tfps._compat import replicated_writes
from tfps._compat import side_executor

Surviving = Callable[[Callable[[], Any]], Any]


def make_survive(
  variable: Any,
  surviving: Surviving,
  *,
  wrote: Callable[[], object] = lambda: None,
) -> None:
  """Makes a variable read, and assign, through `surviving`.

  It may repeat a call, which would be wrong for `assign_add`.

  Args:
    variable: a `tf.Variable`, or one that TensorFlow has wrapped.
    surviving: calls a function and returns its result.
    wrote: called after a write by one of the variable's methods.
  """
  handles.note_functions()
  inner = handles.inner(variable)
  kind: Any = type(inner)
  inner.__class__ = _survivor(kind)
  inner._tfps_surviving = surviving
  inner._tfps_wrote = wrote


def surviving(variable: Any, function: Callable[[], Any]) -> Any:
  """Calls a function that reads a variable, again after a loss of its ps.

  Args:
    variable: a `tf.Variable`, or one that TensorFlow has wrapped.
    function: the function; it is called once if the variable does not survive.

  Returns:
    Its result.
  """
  return _of(handles.inner(variable))(function)


def assign_once(variable: Any, value: Any) -> None:
  """Assigns outside of functions, without a repetition if a ps is lost.

  Args:
    variable: a `tf.Variable`, or one that TensorFlow has wrapped.
    value: its value.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  inner = handles.inner(variable)
  assign = getattr(inner, '_tfps_assign', inner.assign)
  assign(value)
  replicated_writes.repeat(inner, 'assign', value)
  getattr(inner, '_tfps_wrote', lambda: None)()


def _of(inner: Any) -> Surviving:
  if side_executor.is_aside():
    return _once
  surviving: Surviving = getattr(inner, '_tfps_surviving', _once)
  return surviving


def _once(function: Callable[[], Any]) -> Any:
  return function()


@functools.cache
def _survivor(kind: Any) -> Any:
  class Survivor(kind):
    _tfps_surviving: Surviving
    _tfps_wrote: Callable[[], object]

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> Any:
      read = functools.partial(super()._read_variable_op, *args, **kwargs)
      if not tf.executing_eagerly():
        return read()
      # A read value stays on the ps; `identity` copies it here.
      return _of(self)(lambda: tf.identity(read()))

    _tfps_assign = kind.assign

    def assign(self, *args: Any, **kwargs: Any) -> Any:
      assign = functools.partial(super().assign, *args, **kwargs)
      if not tf.executing_eagerly():
        return assign()
      assigned = _of(self)(assign)
      replicated_writes.repeat(self, 'assign', *args, **kwargs)
      self._tfps_wrote()
      return assigned

  for name, method in replicated_writes.writing_to_both(kind).items():
    setattr(Survivor, name, _noted(method))
  to_slice = '_strided_slice_assign'
  setattr(Survivor, to_slice, _noted(getattr(kind, to_slice)))
  Survivor.__name__ = kind.__name__
  Survivor.__qualname__ = kind.__qualname__
  return Survivor


def _noted(write: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(write)
  def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
    written = write(self, *args, **kwargs)
    if tf.executing_eagerly():
      self._tfps_wrote()
    return written

  return noted
