"""Worker-side copies of variables for steps that share one pull.

A step's changes are first applied to the worker's copy, which later steps read.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps.variables import growing


class Copy:
  """A worker's copy of one variable, in a function that is being traced.

  Args:
    variable: the original.
    pull: returns the pulled value.

  Attributes:
    is_assigned: whether the copy was assigned a value to write back.
  """

  def __init__(self, variable: Any, pull: Callable[[], tf.Tensor]) -> None:
    self.variable = variable
    self._pull = pull
    self._value: tf.Tensor | None = None
    self._changes: list[Any] = []
    self._added: list[tf.Tensor] = []
    self.is_assigned = False

  def value(self) -> tf.Tensor:
    """Returns the current value.

    Raises:
      ValueError: local changes are of rows of a table, which name them by
        address, and of which a pulled value may have fewer.
    """
    if self._changes and self.is_local and growing.grows(self.variable):
      raise ValueError(
        f'{self.variable.name}: a step reads all rows of a table of '
        'which it has changed some on the worker. Look rows up by their keys.'
      )
    value = self._pull() if self._value is None else self._value
    for change in self._changes:
      value = _changed(value, change)
    self._changes.clear()
    self._value = value
    return value

  def rows(self, indices: tf.Tensor, pulled: tf.Tensor) -> tf.Tensor:
    """Returns the current values of some rows.

    Args:
      indices: distinct row numbers, of shape [n]; -1, which may be repeated,
        names no row.
      pulled: the pulled values of these rows.
    """
    if self.is_whole:
      return tf.gather(self.value(), indices)
    for change in self._changes:
      pulled += _rows_of(change, indices)
    return pulled

  @property
  def is_whole(self) -> bool:
    """True if the copy has all rows, so that none need to be pulled."""
    return self._value is not None

  @property
  def is_local(self) -> bool:
    """True if there is nothing to write back to the variable."""
    return not self.is_assigned and not self._added

  def change(self, change: Any) -> None:
    """Adds a tensor or `tf.IndexedSlices`, without writing it back."""
    self._changes.append(change)

  def assign(self, value: tf.Tensor) -> None:
    """Assigns a value, to be written back to the variable."""
    self._value = value
    self._changes.clear()
    self._added.clear()
    self.is_assigned = True

  def add(self, value: tf.Tensor) -> None:
    """Adds a tensor, to be added to the variable as well."""
    self._changes.append(value)
    self._added.append(value)

  def added(self) -> tf.Tensor | None:
    """Returns the sum to add to the variable; None if there is none."""
    return tf.add_n(self._added) if self._added else None


def _changed(value: tf.Tensor, change: Any) -> tf.Tensor:
  if not isinstance(change, tf.IndexedSlices):
    return value + change
  rows = change.indices[:, tf.newaxis]
  return tf.tensor_scatter_nd_add(value, rows, change.values)


def _rows_of(change: Any, indices: tf.Tensor) -> tf.Tensor:
  """Returns a change's values for some rows; zeros for -1."""
  if not isinstance(change, tf.IndexedSlices):
    return tf.gather(change, indices)
  number = tf.size(indices)
  both = tf.concat([indices, tf.cast(change.indices, indices.dtype)], axis=0)
  # tf.unique numbers values by first occurrence, so `indices` come first.
  _, positions = tf.unique(both)
  sums = tf.math.unsorted_segment_sum(
    change.values, positions[number:], tf.size(both)
  )
  found = tf.gather(sums, positions[:number])
  is_row = tf.reshape(indices >= 0, [-1] + [1] * (found.shape.rank - 1))
  return tf.where(is_row, found, tf.zeros_like(found))
