"""What a worker has made of variables since it pulled them.

When several steps share one pull, what a step does to a variable is first done
to the worker's copy, which the next steps see.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Copy:
  """A worker's copy of one variable, in a function that is being traced.

  Args:
    variable: of which it is a copy.
    pull: gives the variable's value as it was pulled.
  """

  def __init__(self, variable: Any, pull: Callable[[], tf.Tensor]) -> None:
    self.variable = variable
    self._pull = pull
    self._value: tf.Tensor | None = None
    self._changes: list[Any] = []
    self._added: list[tf.Tensor] = []
    self.is_assigned = False

  def value(self) -> tf.Tensor:
    """All of it, by now."""
    value = self._pull() if self._value is None else self._value
    for change in self._changes:
      value = _changed(value, change)
    self._changes.clear()
    self._value = value
    return value

  def rows(self, indices: tf.Tensor, pulled: tf.Tensor) -> tf.Tensor:
    """Some of its rows by now.

    Args:
      indices: which; each once.
      pulled: the same rows as they were pulled.
    """
    if self.is_whole:
      return tf.gather(self.value(), indices)
    for change in self._changes:
      pulled += _rows_of(change, indices)
    return pulled

  @property
  def is_whole(self) -> bool:
    """Whether rows can be had without pulling them."""
    return self._value is not None

  def change(self, change: Any) -> None:
    """Adds a tensor or `tf.IndexedSlices` to the copy alone."""
    self._changes.append(change)

  def assign(self, value: tf.Tensor) -> None:
    """Gives it another value, which the variable is to have, too."""
    self._value = value
    self._changes.clear()
    self._added.clear()
    self.is_assigned = True

  def add(self, value: tf.Tensor) -> None:
    """Adds a tensor, which is to be added to the variable, too."""
    self._changes.append(value)
    self._added.append(value)

  def added(self) -> tf.Tensor | None:
    """What is to be added to the variable, if it is not assigned."""
    return tf.add_n(self._added) if self._added else None


def _changed(value: tf.Tensor, change: Any) -> tf.Tensor:
  if not isinstance(change, tf.IndexedSlices):
    return value + change
  rows = change.indices[:, tf.newaxis]
  return tf.tensor_scatter_nd_add(value, rows, change.values)


def _rows_of(change: Any, indices: tf.Tensor) -> tf.Tensor:
  """What a change is for some rows, of which each is named once."""
  if not isinstance(change, tf.IndexedSlices):
    return tf.gather(change, indices)
  number = tf.size(indices)
  both = tf.concat([indices, tf.cast(change.indices, indices.dtype)], axis=0)
  # The first time something occurs it gets the next number.
  _, positions = tf.unique(both)
  sums = tf.math.unsorted_segment_sum(
    change.values, positions[number:], tf.size(both)
  )
  return sums[:number]
