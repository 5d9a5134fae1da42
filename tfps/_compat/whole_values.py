"""Variables of which most rows are elsewhere, read and assigned as a whole.

TensorFlow reads, assigns, saves and restores all of a variable by the methods
below, which nothing public lets one extend.
"""

import functools
from typing import Any
from typing import Protocol

import tensorflow as tf
from tensorflow.python.trackable import base

from tfps._compat import reads
from tfps._compat import survivors


class Rest(Protocol):
  """The rows that are elsewhere."""

  def add_to(self, variable: Any, first: tf.Tensor) -> tf.Tensor:
    """Returns the whole value, given the value that the variable has."""

  def take_from(self, variable: Any, value: Any) -> Any:
    """Writes rows of a whole value; returns what the variable is to have."""


def make_whole(variable: Any, rest: Rest) -> None:
  """Makes a variable read and assign rows that are elsewhere, too.

  Args:
    variable: a `tf.Variable`, or one that TensorFlow has wrapped.
    rest: the rows.
  """
  kind: Any = type(variable)
  while hasattr(variable, '_v'):
    variable.__class__ = _around(kind)
    variable = variable._v
    kind = type(variable)
  variable.__class__ = _whole(kind)
  variable._tfps_rest = rest


@functools.cache
def _whole(kind: Any) -> Any:
  class Whole(kind):
    _tfps_rest: Rest

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> Any:
      read = functools.partial(super()._read_variable_op, *args, **kwargs)
      if reads.reader() is not None:
        raise ValueError(
          f'{self.name}: a step reads all rows of a table with storage, which '
          'do not fit in memory. Look rows up by their keys.'
        )
      return _surviving(self, lambda: self._tfps_rest.add_to(self, read()))

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
      first = _surviving(self, lambda: self._tfps_rest.take_from(self, value))
      return super().assign(first, *args, **kwargs)

    # TensorFlow saves by the method that the last class has.
    def _serialize_to_tensors(self) -> Any:
      return super()._serialize_to_tensors()

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
      value = restored_tensors[base.VARIABLE_VALUE_KEY]
      first = self._tfps_rest.take_from(self, value)
      return super()._restore_from_tensors({base.VARIABLE_VALUE_KEY: first})

  return _named(Whole, kind)


@functools.cache
def _around(kind: Any) -> Any:
  """Returns a class of TensorFlow's wrappers that save what is within them."""

  class Around(kind):
    def _serialize_to_tensors(self) -> Any:
      return self._v._serialize_to_tensors()

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
      return self._v._restore_from_tensors(restored_tensors)

  return _named(Around, kind)


def _named(kind: Any, like: Any) -> Any:
  kind.__name__, kind.__qualname__ = like.__name__, like.__qualname__
  return kind


def _surviving(variable: Any, function: Any) -> Any:
  if not tf.executing_eagerly():
    return function()
  return survivors.surviving(variable, function)
