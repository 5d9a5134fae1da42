"""Reads the values of variables at one moment, and leaves them on the ps."""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.recovery import frozen_rows
from tfps.recovery import inventory
from tfps.recovery import snapshot_storage


class VariableReader:
  """Reads all variables of an inventory and leaves their values on the ps.

  One call to each device returns the current values of its variables. A value
  shares the memory of its variable until that changes, so that reading takes
  little time and memory. Rows in a store are copied on the disk of their ps; if
  a read fails, as it may on a full disk, no copies remain.
  """

  def __init__(self) -> None:
    self._readings: list[_Reading] = []
    self._covered = (0, 0)

  def read(
    self, entries: Sequence[inventory.Entry]
  ) -> list[snapshot_storage.Values]:
    """Returns the values of all variables, grouped by device.

    Args:
      entries: those of the last call, and maybe more.

    Raises:
      tf.errors.OpError: a ps is lost, or its disk is full.
    """
    # A variable gets its store just after it was made.
    stored = sum(frozen_rows.is_stored(each) for each in _pieces(entries))
    if self._covered != (len(entries), stored):
      self._readings = _readings(entries)
      self._covered = len(entries), stored
    with contextlib.ExitStack() as on_error:
      values = []
      for reading in self._readings:
        on_error.callback(reading.drop)
        values.append(reading.values())
      on_error.pop_all()
    return values


@dataclasses.dataclass(frozen=True)
class _Reading:
  """Reading of the variables of a device.

  Attributes:
    device: the device.
    pieces: variables that have all rows themselves.
    stored: variables with a store.
    function: reads them, in this order; see `frozen_rows.read`.
  """

  device: str
  pieces: list[inventory.Piece]
  stored: list[inventory.Piece]
  function: Any

  def values(self) -> snapshot_storage.Values:
    with tf.device(self.device):
      found = self.function()
    number = len(self.pieces)
    frozen = map(frozen_rows.FrozenRows, self.stored, found[number:])
    return snapshot_storage.Values(
      self.device, self.pieces, found[:number], list(frozen)
    )

  def drop(self) -> None:
    """Drops the copies of rows, if any; a lost ps has none."""
    with contextlib.suppress(tf.errors.OpError):  # and asks that no further
      for piece in self.stored:
        frozen_rows.drop(piece)


def _readings(entries: Sequence[inventory.Entry]) -> list[_Reading]:
  by_device = collections.defaultdict(list)
  for piece in _pieces(entries):
    by_device[piece.variable.device].append(piece)
  readings = []
  for device, own in by_device.items():
    stored = [piece for piece in own if frozen_rows.is_stored(piece)]
    pieces = [piece for piece in own if piece not in stored]
    with tf.device(device):
      function = _reading_function(pieces + stored)
    readings.append(_Reading(device, pieces, stored, function))
  return readings


def _pieces(entries: Sequence[inventory.Entry]) -> Iterator[inventory.Piece]:
  for entry in entries:
    yield from entry.pieces()


def _reading_function(pieces: Sequence[inventory.Piece]) -> Any:
  def read() -> list[tf.Tensor]:
    return [frozen_rows.read(piece.variable) for piece in pieces]

  # Without autograph, which is not safe while another thread traces.
  return tf.function(read, autograph=False).get_concrete_function()
