"""Rows of variables that have changed, found on the devices of the variables.

Beside each variable or shard, its device keeps a digest of each row as of the
last write. A pass compares the rows with it, so it finds changes however they
were made. Rows are read in slices, so that a pass needs little memory.

Wide rows are compared without the lock of updates, as that takes a while. Then,
under the lock, the rows that were found are read again, together with narrow
rows, all of which are compared there. The rows of a growing table are a wide
variable, their keys a narrow one: a row whose key has changed is read, too. So
what a pass finds on a device is of one moment, except for wide rows that
changed between the two comparisons; the next pass finds these.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps._compat import handles
from tfps._compat import open_shapes
from tfps._compat import side_executor
from tfps.keras.serving import pieces as pieces_lib
from tfps.keras.serving import row_digests
from tfps.updates import ps_lock
from tfps.variables import row_writes

_HANDLE = tf.TensorSpec([], tf.resource)
_NUMBER = tf.TensorSpec([], tf.int64)
_ROWS = tf.TensorSpec([None], tf.int64)
_PAIR = _HANDLE, _HANDLE
_NOTE_SPECS = _HANDLE, _NUMBER, _ROWS, _ROWS, _ROWS


@dataclasses.dataclass(frozen=True, eq=False)
class Change:
  """Rows of a piece that have changed.

  Attributes:
    piece: the piece.
    num_rows: how many rows it has.
    rows: the numbers of those that have changed, in the piece.
    found: the same and their values, on the piece's device.
  """

  piece: pieces_lib.Piece
  num_rows: int
  rows: np.ndarray
  found: row_digests.Found

  def values(self) -> Iterator[np.ndarray]:
    """Yields the values of rows, uint8 of shape [n, row_bytes].

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    step = max(1, row_writes.SLICE_BYTES // self.piece.row_bytes)
    for first in range(0, len(self.rows), step):
      with side_executor.run_aside(self.piece.device):
        part = self.found.values
        if len(self.rows) > step:
          part = part[first : first + step]
        values: np.ndarray = part.numpy()
      yield values


class Shadows:
  """Digests of the rows of variables, as of the last write.

  Args:
    pieces: the variables.
    values: returns the values that were written last, of the whole variable of
      a piece.

  Raises:
    tf.errors.OpError: a ps is lost.
  """

  def __init__(
    self,
    pieces: Sequence[pieces_lib.Piece],
    values: Callable[[pieces_lib.Piece], Any],
  ) -> None:
    devices = dict.fromkeys(piece.device for piece in pieces)
    self._by_device = {
      device: [piece for piece in pieces if piece.device == device]
      for device in devices
    }
    self._shadows = {
      piece: _shadow(piece, row_digests.digests_of(piece, values(piece)))
      for piece in pieces
    }
    self._functions: dict[Any, Any] = {}

  def find(self) -> list[Change]:
    """Returns the changed rows of each piece that has some.

    Raises:
      tf.errors.OpError: a ps is lost, or has lost the digests.
    """
    return [
      change
      for device, pieces in self._by_device.items()
      for change in self._find_on(device, pieces)
    ]

  def note(self, changes: Sequence[Change]) -> None:
    """Notes that changes were written.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    for change in changes:
      device, found = change.piece.device, change.found
      arguments = (found.num_rows, found.first_digest, found.rows)
      handle = self._shadows[change.piece].handle
      with side_executor.run_aside(device):
        note = self._function(row_digests.note, device, _NOTE_SPECS)
        note(handle, *arguments, found.digests).numpy()

  def _find_on(
    self, device: str, pieces: Sequence[pieces_lib.Piece]
  ) -> list[Change]:
    handles_of = [
      (piece.variable.handle, self._shadows[piece].handle) for piece in pieces
    ]
    with side_executor.run_aside(device):
      candidates = [
        self._function(
          row_digests.scan,
          device,
          _PAIR,
          piece.layout,
        )(*own)
        for piece, own in zip(pieces, handles_of, strict=True)
        if not piece.is_narrow
      ]
      specs = [_PAIR] * len(pieces), [(_ROWS, _NUMBER)] * len(candidates)
      find = self._function(_find_locked, device, specs, tuple(pieces))
      found = [
        row_digests.Found(*each) for each in find(handles_of, candidates)
      ]
      return [
        Change(piece, int(each.num_rows), rows, each)
        for piece, each in zip(pieces, found, strict=True)
        if len(rows := each.rows.numpy()) or self._has_resized(piece, each)
      ]

  def _has_resized(
    self, piece: pieces_lib.Piece, found: row_digests.Found
  ) -> bool:
    if not piece.grows:
      return False
    known = open_shapes.num_rows(self._shadows[piece])
    return bool(known.numpy() != found.num_rows.numpy())

  def _function(
    self, function: Any, device: str, specs: Any, *arguments: Any
  ) -> Any:
    """Returns a function of tensors, and of further arguments, for a device."""
    key = function, device, arguments
    if key not in self._functions:
      # Without autograph, which is not safe while another thread traces.
      self._functions[key] = tf.function(
        functools.partial(_on, device, function, arguments),
        input_signature=specs,
        autograph=False,
      )
    return self._functions[key]


def _on(device: str, function: Any, last: Any, *arguments: Any) -> Any:
  with tf.device(device):
    return function(*arguments, *last)


def _find_locked(
  handles_of: Sequence[tuple[tf.Tensor, tf.Tensor]],
  candidates: Sequence[tuple[tf.Tensor, tf.Tensor]],
  pieces: Sequence[pieces_lib.Piece],
) -> list[row_digests.Found]:
  """Finds the changed rows of all pieces of a device, under its lock."""
  found: dict[pieces_lib.Piece, row_digests.Found] = {}
  wide = [piece for piece in pieces if not piece.is_narrow]
  scanned = dict(zip(wide, candidates, strict=True))

  def find() -> list[Any]:
    own = dict(zip(pieces, handles_of, strict=True))
    # Those of narrow rows tell which wide ones to read.
    for piece in sorted(pieces, key=lambda piece: not piece.is_narrow):
      if piece.is_whole:
        rows = tf.zeros([1], tf.int64)
      elif piece.is_narrow:
        rows, _ = row_digests.scan(*own[piece], piece.layout)
      else:
        rows = _due(piece, own[piece][0], scanned[piece], found)
      found[piece] = row_digests.changed(piece, *own[piece], rows)
    return [tensor for each in found.values() for tensor in each]

  held = _Held(pieces[0].device, handles_of[0][0])
  ps_lock.run([ps_lock.Job(held, find)])
  return [found[piece] for piece in pieces]


class _Held(NamedTuple):
  """The device whose lock is taken, and the handle of a variable on it."""

  device: str
  handle: tf.Tensor


def _due(
  piece: pieces_lib.Piece,
  handle: tf.Tensor,
  scanned: tuple[tf.Tensor, tf.Tensor],
  found: dict[pieces_lib.Piece, row_digests.Found],
) -> tf.Tensor:
  """Returns the numbers of wide rows to read under the lock, without order."""
  rows, num_scanned = scanned
  if not piece.grows:
    return rows
  num_rows = row_digests.count_rows(handle, piece.layout)
  others = [
    each.rows
    for other, each in found.items()
    if other.is_narrow and other.group == piece.group
  ]
  new = tf.range(num_scanned, tf.maximum(num_scanned, num_rows))
  due, _ = tf.unique(tf.concat([rows, *others, new], axis=0))
  return tf.gather(due, row_digests.where(due < num_rows))


def _shadow(piece: pieces_lib.Piece, digests: np.ndarray) -> Any:
  with side_executor.run_aside(piece.device):
    value = row_writes.send(digests, tf.int64)
    shadow = handles.scratch(digests.shape, tf.int64)
    shadow.assign(value)
    open_shapes.num_rows(shadow).numpy()  # tells of a lost ps
  return shadow
