"""Reads many variables at once and leaves their values where they are."""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.recovery import inventory
from tfps.recovery import snapshot_storage


class Reader:
  """Reads the variables of an inventory.

  One call to each device returns the values that its variables have then. A
  value shares the memory of its variable until that changes, so that reading
  is quick however much there is.
  """

  def __init__(self) -> None:
    self._functions: dict[str, tuple[list[inventory.Piece], Any]] = {}
    self._num_entries = 0

  def read(
    self, entries: Sequence[inventory.Entry]
  ) -> list[snapshot_storage.Values]:
    """The values of all variables, by device."""
    if self._num_entries != len(entries):
      self._functions = _functions(entries)
      self._num_entries = len(entries)
    groups = []
    for device, (pieces, function) in self._functions.items():
      with tf.device(device):
        groups.append(snapshot_storage.Values(device, pieces, function()))
    return groups


def _functions(
  entries: Sequence[inventory.Entry],
) -> dict[str, tuple[list[inventory.Piece], Any]]:
  by_device = collections.defaultdict(list)
  for entry in entries:
    for piece in entry.pieces():
      by_device[piece.variable.device].append(piece)
  functions = {}
  for device, pieces in by_device.items():
    with tf.device(device):
      functions[device] = pieces, _function(pieces)
  return functions


def _function(pieces: Sequence[inventory.Piece]) -> Any:
  def read() -> list[tf.Tensor]:
    return [piece.variable.read_value() for piece in pieces]

  # Not converted: this may be traced beside the training program.
  return tf.function(read, autograph=False).get_concrete_function()
