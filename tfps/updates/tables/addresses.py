"""Addresses of rows that are taken from one key and given to another.

A row gets another address whenever it is taken from a key. So what was computed
for one key never reaches the next: an update names addresses, and those that
are not current any more are dropped, and counted.

An address is the row's number plus 2^40 times how often the row was taken.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import handles
from tfps._compat import replicated_writes
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import resources

_ROW_BITS = 40
_ALL_ROWS = (1 << _ROW_BITS) - 1
_ALL_ADDRESSES = (1 << 62) - 1
# Is added to the address of a row that was given to a key again, until the
# first update, for which the row's slots still have the values of another key.
_HAS_OLD_SLOTS = 1 << 62

_ATTRIBUTE = '_tfps_addresses'


@dataclasses.dataclass(frozen=True, eq=False)
class Addresses:
  """Current address of each row of a shard.

  Attributes:
    variable: int64 variable of shape [number of rows], growing. A row that
      belongs to no key has a negative number; -1, if it never will.
    counts: the shard's counts.
  """

  variable: Any
  counts: Any

  def are_current(self, addresses: tf.Tensor) -> tf.Tensor:
    """Returns whether rows still have these addresses; bool, of their shape."""
    return tf.equal(_plain(self._held(rows_of(addresses))), addresses)

  def are_used(self, rows: tf.Tensor) -> tf.Tensor:
    """Returns whether rows, given their numbers, belong to keys."""
    return self._held(rows) >= 0

  def in_use(self, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers and addresses of rows that belong to keys.

    Args:
      used: the count of that name.
    """
    rows = tf.range(counts_lib.NUM_INITIAL, used, dtype=tf.int64)
    held = self._held(rows)
    is_used = held >= 0
    return tf.boolean_mask(rows, is_used), _plain(
      tf.boolean_mask(held, is_used)
    )

  def give(self, old: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
    """Gives rows to keys.

    Args:
      old: numbers of rows that were taken from other keys.
      new: numbers of rows that had no key before, which are their addresses.

    Returns:
      The addresses, first of the old ones, and the operations.
    """
    again = -1 - self._held(old)
    given = [self._write(old, again + _HAS_OLD_SLOTS), self._write(new, new)]
    return tf.concat([again, new], axis=0), given

  def take(self, rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Takes rows from their keys.

    Args:
      rows: their numbers.

    Returns:
      The addresses that they had, and the operation.
    """
    addresses = _plain(self._held(rows))
    following = tf.bitwise.bitwise_and(
      addresses + (1 << _ROW_BITS), tf.constant(_ALL_ADDRESSES, tf.int64)
    )
    return addresses, self._write(rows, -1 - following)

  def resolve(
    self, gradient: tf.IndexedSlices
  ) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Finds the rows that an update is for; runs within a `ps_lock.Job`.

    What is for keys without a row is left out, as is what comes too late,
    which is counted.

    Args:
      gradient: its indices are addresses; -1 names no row.

    Returns:
      The gradient by numbers of rows, and for each row whether its slots have
      values of another key, to be replaced by those of a new row.
    """
    rows = rows_of(gradient.indices)
    held = self._held(rows)
    has_row = gradient.indices >= 0
    is_current = has_row & tf.equal(_plain(held), gradient.indices)
    is_late = has_row & ~is_current
    number = tf.math.count_nonzero(is_late)
    counted = counts_lib.add(self.counts, {counts_lib.Count.LATE: number})
    rows = tf.boolean_mask(rows, is_current)
    held = tf.boolean_mask(held, is_current)
    noted = self._write(rows, _plain(held))
    with tf.control_dependencies(_operations([noted, counted])):
      rows = tf.identity(rows)
    values = tf.boolean_mask(gradient.values, is_current)
    return tf.IndexedSlices(values, rows), held >= _HAS_OLD_SLOTS

  def _held(self, rows: tf.Tensor) -> tf.Tensor:
    return resources.gather(self.variable, rows)

  def _write(self, rows: tf.Tensor, values: tf.Tensor) -> Any:
    return resources.scatter(self.variable, rows, values)


def attach(rows: Any, addresses: Addresses) -> None:
  """Lets updates of a variable name its rows by addresses."""
  setattr(handles.inner(rows), _ATTRIBUTE, addresses)


def of(rows: Any) -> Addresses | None:
  """Returns the addresses that updates of a variable name, or None."""
  found: Addresses | None = getattr(handles.inner(rows), _ATTRIBUTE, None)
  return found


def attach_to_replica(rows: Any, replica: Any) -> None:
  """Lets updates of a variable's replica name rows by replicated addresses."""
  own = of(rows)
  if own is not None:
    variable, counts = map(
      replicated_writes.replica_of, (own.variable, own.counts)
    )
    attach(replica, Addresses(variable, counts))


def rows_of(addresses: tf.Tensor) -> tf.Tensor:
  """Returns the numbers of the rows that have addresses; 0 for -1."""
  rows = tf.bitwise.bitwise_and(addresses, tf.constant(_ALL_ROWS, tf.int64))
  return tf.where(addresses < 0, tf.zeros_like(rows), rows)


def belong_to_keys(held: np.ndarray, *, with_old_slots: bool) -> np.ndarray:
  """Returns whether rows belong to keys, given what the variable has for them.

  Args:
    held: elements of the variable.
    with_old_slots: whether to count those whose slots are still another key's.
  """
  are_used: np.ndarray = held >= 0
  return are_used if with_old_slots else are_used & (held < _HAS_OLD_SLOTS)


def _plain(held: tf.Tensor) -> tf.Tensor:
  """Returns addresses without the mark of old slots; others stay negative."""
  return tf.where(held >= _HAS_OLD_SLOTS, held - _HAS_OLD_SLOTS, held)


def _operations(results: list[Any]) -> list[Any]:
  return [result for result in results if result is not None]
