"""Rows in stores, written to snapshots and read from them in slices.

A store keeps a copy of its rows, as of the moment of the snapshot, until all
slices are written. So the ps never has all rows in memory.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.recovery import inventory
from tfps.updates.tables import counts
from tfps.updates.tables import storage

# A file of its own is written for each slice.
SLICE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class FrozenRows:
  """Rows of a variable at one moment.

  Attributes:
    piece: the variable, which has a store.
    num_rows: how many rows there are, a tensor on the ps.
  """

  piece: inventory.Piece
  num_rows: tf.Tensor

  def slices(self) -> Iterator[tuple[inventory.Piece, tf.Tensor]]:
    """Yields slices, each with its values on the ps.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    variable, total = self.piece.variable, int(self.num_rows)
    stored = _store_of(self.piece)
    width = variable.shape[1]
    step = max(counts.NUM_INITIAL, SLICE_BYTES // (variable.dtype.size * width))
    for first in range(0, total, step):
      number = min(step, total - first)
      rows = tf.range(first, first + number, dtype=tf.int64)
      with tf.device(variable.device):
        values = stored.read_frozen(variable, rows)
      spec = f'{total} {width} {first},{number}:-'
      yield inventory.Piece(variable, self.piece.key, spec), values

  def drop(self) -> None:
    """Drops the copy; does nothing if the ps is lost, which has none then."""
    with contextlib.suppress(tf.errors.OpError):
      drop(self.piece)


def drop(piece: inventory.Piece) -> None:
  """Drops the copy of the rows of a variable with a store, if there is one.

  Raises:
    tf.errors.OpError: the ps is lost.
  """
  with tf.device(piece.variable.device):
    _store_of(piece).thaw(piece.variable).numpy()


def is_stored(piece: inventory.Piece) -> bool:
  """Returns whether a variable has a store."""
  return storage.of(piece.variable) is not None


def read(variable: Any) -> tf.Tensor:
  """Reads a variable; of one with a store, lets that keep a copy of its rows.

  Args:
    variable: on the current device.

  Returns:
    The value, or how many rows the store has.
  """
  stored = storage.of(variable)
  if stored is None:
    return variable.read_value()
  return stored.freeze(variable)


def restore(
  piece: inventory.Piece,
  specs: Iterable[str],
  read_part: Callable[[inventory.Piece], tf.Tensor],
) -> None:
  """Restores a variable with a store, slice by slice.

  Args:
    piece: the variable.
    specs: slices of it in the snapshot, as `inventory.Piece` has them.
    read_part: returns the values of a slice.

  Raises:
    tf.errors.OpError: the ps is lost.
  """
  variable, stored = piece.variable, _store_of(piece)
  with tf.device(variable.device):
    stored.forget(variable, all_of_group=False).numpy()
    for spec in specs:
      part = dataclasses.replace(piece, slice_spec=spec)
      stored.put(variable, _first_row(spec), read_part(part))


def _store_of(piece: inventory.Piece) -> storage.StoredRows:
  stored = storage.of(piece.variable)
  assert stored is not None
  return stored


def _first_row(spec: str) -> int:
  return int(spec.split()[-1].partition(',')[0]) if spec else 0
