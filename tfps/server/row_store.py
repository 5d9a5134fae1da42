"""Store of a variable's rows: some are in memory, the others in a file.

A store has a fixed number of frames in memory, each with one row, and a file in
which each row has its place. What is written gets a frame; the rows of other
frames, not written for long, make room for it by going to the file. A row is
either in a frame or in the file or, if it was never written, in neither.

A store reads and writes some rows at a time, each time as a whole: to whoever
uses it, a row that moves is the same row.
"""

from collections.abc import Iterable
import threading
from typing import NamedTuple

import numpy as np

from tfps.server import row_file

# What `RowStore._places` has for rows that are in no frame.
_NOWHERE, _IN_FILE = -1, -2

# Of so many frames those are emptied that were written to the longest time ago,
# or of so many for each row that needs one.
_WINDOW = 1 << 10
_WINDOW_PER_ROW = 8


class Counts(NamedTuple):
  """Counts of a store.

  Attributes:
    end: the number of the last row that was written, plus 1.
    in_memory: rows in frames.
    in_file: rows in the file.
    memory_bytes: of rows in frames.
    file_bytes: that the file takes on its disk.
    moved_out: rows that have gone to the file, one for each time.
    moved_in: rows that have come back, likewise.
  """

  end: int = 0
  in_memory: int = 0
  in_file: int = 0
  memory_bytes: int = 0
  file_bytes: int = 0
  moved_out: int = 0
  moved_in: int = 0

  @classmethod
  def sums(cls, counts: Iterable['Counts']) -> 'Counts':
    """Returns the sums of counts."""
    return cls(*map(sum, zip(cls(), *counts, strict=True)))


class Group:
  """Stores that share memory: of the rows of a shard, and of their slots.

  Attributes:
    stores: the stores, by name.
    memory_bytes: of the frames of all.
  """

  def __init__(self) -> None:
    self.stores: dict[str, RowStore] = {}
    self.memory_bytes = 0

  @property
  def num_frames(self) -> int:
    """How many frames each store has."""
    row_bytes = sum(store.row_bytes for store in tuple(self.stores.values()))
    return self.memory_bytes // max(row_bytes, 1)


class RowStore:
  """Rows of one variable, numbered from 0 on.

  Args:
    place: where its file is.
    group: that it belongs to.
    like: array of rows.

  Raises:
    ValueError: its directory cannot be used.
  """

  def __init__(
    self, place: row_file.Place, group: Group, like: np.ndarray
  ) -> None:
    self.row_bytes = like.dtype.itemsize * like.shape[1]
    self._frames = like[:0].copy()
    self._owners = np.zeros(0, np.int64)  # the row of each frame
    self._written_at = np.zeros(0, np.int64)
    self._group = group
    self._lock = threading.Lock()
    self._file = row_file.RowFile(place, like)
    self._places = np.empty(0, np.int32)  # the frame of each row
    self._end = self._num_in_file = self._moved_out = self._moved_in = 0
    self._frozen: tuple[row_file.RowFile, np.ndarray] | None = None
    self._now = 0  # how often rows were written
    self._num_used = 0  # so many of the first frames have rows
    self._hand = 0  # where to look next for frames to empty

  def read(self, rows: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Returns rows.

    Args:
      rows: their numbers.
      otherwise: what those have that were never written.
    """
    with self._lock:
      places = self._places_of(rows)
      are_in_memory = places >= 0
      if are_in_memory.all():
        return np.take(self._frames, places, axis=0, mode='clip')
      found = otherwise.copy()
      found[are_in_memory] = self._frames[places[are_in_memory]]
      are_in_file = places == _IN_FILE
      if are_in_file.any():
        found[are_in_file] = self._file.read(rows[are_in_file])
      return found

  @property
  def is_frozen(self) -> bool:
    """True if there is a copy of all rows."""
    return self._frozen is not None

  def freeze(self) -> int:
    """Keeps a copy of all rows, in a file, in place of an earlier one.

    Returns:
      The number of the last row that was written, plus 1.

    Raises:
      ValueError: the disk is full.
    """
    with self._lock:
      self._frozen = None
      self._file.fit(self._end)
      copy = self._file.copy()
      used = slice(0, self._num_used)
      copy.write(self._owners[used], self._frames[used])
      self._frozen = copy, self._places[: self._end] != _NOWHERE
      return self._end

  def read_frozen(self, rows: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Returns rows as they were when `freeze` was called.

    Args:
      rows: their numbers.
      otherwise: as for `read`.

    Raises:
      ValueError: there is no such copy.
    """
    frozen = self._frozen
    if frozen is None:
      raise ValueError('The copy of rows has been dropped meanwhile.')
    copy, are_written = frozen
    found = otherwise.copy()
    written = rows < len(are_written)
    written[written] = are_written[rows[written]]
    found[written] = copy.read(rows[written])
    return found

  def thaw(self) -> None:
    """Drops the copy of all rows."""
    self._frozen = None

  def write(self, rows: np.ndarray, values: np.ndarray) -> None:
    """Writes different rows, given their numbers.

    Raises:
      ValueError: the disk is full; nothing is written.
    """
    if not len(rows):
      return
    with self._lock:
      self._now += 1
      self._keep_limit()
      end = max(self._end, int(rows.max()) + 1)
      places = self._places_of(rows)
      new = np.flatnonzero(places < 0)
      if len(new) > len(self._frames) - self._num_used:
        self._file.fit(end)  # from here on, nothing fails
      self._know(end)
      self._written_at[places[places >= 0]] = self._now
      given = self._take_frames(len(new))
      self._move_in(rows, places, new[: len(given)], given)
      are_in_memory = places >= 0
      self._frames[places[are_in_memory]] = values[are_in_memory]
      if len(given) < len(new):
        rest = new[len(given) :]  # more than there are frames
        self._num_in_file += int((places[rest] == _NOWHERE).sum())
        self._file.write(rows[rest], values[rest])
        self._places[rows[rest]] = _IN_FILE

  def counts(self) -> Counts:
    """Returns how many rows are in memory and in the file."""
    with self._lock:
      return Counts(
        self._end,
        self._num_used,
        self._num_in_file,
        self._num_used * self.row_bytes,
        self._file.num_bytes,
        self._moved_out,
        self._moved_in,
      )

  def _resize(self, limit: int, kept: int) -> None:
    """Makes so many frames, of which it keeps the first ones."""
    # Memory that is not written to takes no memory.
    frames = np.empty((limit, *self._frames.shape[1:]), self._frames.dtype)
    owners, written_at = np.zeros(limit, np.int64), np.zeros(limit, np.int64)
    frames[:kept] = self._frames[:kept]
    owners[:kept] = self._owners[:kept]
    written_at[:kept] = self._written_at[:kept]
    self._frames, self._owners, self._written_at = frames, owners, written_at
    self._num_used, self._hand = kept, 0

  def _keep_limit(self) -> None:
    """Makes as many frames as the group allows, which may get more stores."""
    limit = self._group.num_frames
    if limit == len(self._frames):
      return
    surplus = np.arange(limit, self._num_used)
    if len(surplus):
      self._file.fit(self._end)
      self._move_out(surplus)
    self._resize(limit, min(limit, self._num_used))

  def _places_of(self, rows: np.ndarray) -> np.ndarray:
    known = len(self._places)
    if not known:
      return np.full(len(rows), _NOWHERE, np.int32)
    places: np.ndarray = np.take(self._places, rows, mode='clip')
    places[rows >= known] = _NOWHERE
    return places

  def _know(self, end: int) -> None:
    known, self._end = len(self._places), end
    if end > known:
      places = np.full(row_file.grown(known, end), _NOWHERE, np.int32)
      places[:known] = self._places
      self._places = places

  def _take_frames(self, number: int) -> np.ndarray:
    """Returns frames, which are in no use any more; maybe fewer."""
    first = self._num_used
    self._num_used = min(first + number, len(self._frames))
    free = np.arange(first, self._num_used)
    if len(free) == number or not first:
      return free
    victims = self._victims(number - len(free), first)
    self._move_out(victims)
    return np.concatenate([free, victims])

  def _victims(self, number: int, size: int) -> np.ndarray:
    """Returns frames not written to for long, and not now.

    Args:
      number: how many; it may find fewer.
      size: how many of the first ones have a row.
    """
    window = min(size, max(_WINDOW_PER_ROW * number, _WINDOW))
    frames = (self._hand + np.arange(window)) % size
    self._hand = (self._hand + window) % size
    written_at = self._written_at[frames]
    are_old = written_at < self._now
    frames, written_at = frames[are_old], written_at[are_old]
    if len(frames) > number:
      frames = frames[np.argpartition(written_at, number - 1)[:number]]
    return frames

  def _move_out(self, frames: np.ndarray) -> None:
    rows = self._owners[frames]
    self._file.write(rows, self._frames[frames])
    self._places[rows] = _IN_FILE
    self._num_in_file += len(rows)
    self._moved_out += len(rows)

  def _move_in(
    self,
    rows: np.ndarray,
    places: np.ndarray,
    which: np.ndarray,
    frames: np.ndarray,
  ) -> None:
    """Gives frames to some of the rows that are written."""
    number = int((places[which] == _IN_FILE).sum())
    self._num_in_file -= number
    self._moved_in += number
    places[which] = frames
    self._places[rows[which]] = frames
    self._owners[frames] = rows[which]
    self._written_at[frames] = self._now
