"""Reads the values of variables at one moment, and leaves them on the ps."""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.recovery import inventory
from tfps.recovery import snapshot_storage


class VariableReader:
  """Reads all variables of an inventory and leaves their values on the ps.

  One call to each device returns the current values of its variables. A value
  shares the memory of its variable until that changes, so that reading takes
  little time and memory.
  """

  def __init__(self) -> None:
    self._functions: dict[str, tuple[list[inventory.Piece], Any]] = {}
    self._num_entries = 0

  def read(
    self, entries: Sequence[inventory.Entry]
  ) -> list[snapshot_storage.Values]:
    """Returns the values of all variables, grouped by device.

    Args:
      entries: those of the last call, and maybe more.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._num_entries != len(entries):
      self._functions = _reading_functions(entries)
      self._num_entries = len(entries)
    groups = []
    for device, (pieces, function) in self._functions.items():
      with tf.device(device):
        groups.append(snapshot_storage.Values(device, pieces, function()))
    return groups


def _reading_functions(
  entries: Sequence[inventory.Entry],
) -> dict[str, tuple[list[inventory.Piece], Any]]:
  by_device = collections.defaultdict(list)
  for entry in entries:
    for piece in entry.pieces():
      by_device[piece.variable.device].append(piece)
  functions = {}
  for device, pieces in by_device.items():
    with tf.device(device):
      functions[device] = pieces, _reading_function(pieces)
  return functions


def _reading_function(pieces: Sequence[inventory.Piece]) -> Any:
  def read() -> list[tf.Tensor]:
    return [piece.variable.read_value() for piece in pieces]

  # Without autograph, which is not safe while another thread traces.
  return tf.function(read, autograph=False).get_concrete_function()
