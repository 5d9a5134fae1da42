"""File with a place for each row of a variable, by its number.

The file has no name and no other user: it is gone with its process, however
that ends.
"""

import dataclasses
import functools
import json
import mmap
import os
import pathlib
import tempfile

import numpy as np

from tfps._utils import private_files

# A file grows by one part in so many, and by so many rows at least.
_SPARE_PART = 8
_SPARE_ROWS = 1 << 10


@dataclasses.dataclass(frozen=True)
class Place:
  """Name of a store, and where it keeps its rows.

  Attributes:
    name: no other store of the process has it.
    group: stores of the same group share `memory_bytes`, and are cleared
      together.
    memory_bytes: of the frames of a group.
    directory: where the file is.
    owner: names the table and the task in errors.
  """

  name: str
  group: str
  memory_bytes: int
  directory: str
  owner: str

  @functools.cached_property
  def encoded(self) -> str:
    """The same as text, by which functions are given it."""
    return json.dumps(dataclasses.asdict(self))


class RowFile:
  """File with a place for each row, of a fixed number of bytes.

  Args:
    place: where it is.
    like: array of rows.

  Raises:
    ValueError: the directory cannot be used.
  """

  def __init__(self, place: Place, like: np.ndarray) -> None:
    self._place = place
    self._width, self._dtype = like.shape[1], like.dtype
    self._rows = np.empty((0, self._width), self._dtype)
    try:
      private_files.make_folder(pathlib.Path(place.directory))
      # Only its owner may read it, and it has no name or loses it at once.
      self._file = tempfile.TemporaryFile(  # noqa: SIM115
        dir=place.directory, prefix='tfps-rows-'
      )
    except OSError as error:
      raise self._error(error) from error

  @property
  def num_bytes(self) -> int:
    """The number of bytes of all rows."""
    return self._rows.nbytes

  def fit(self, num_rows: int) -> None:
    """Takes space on the disk for rows, so that writing them cannot fail.

    Args:
      num_rows: the number of the last one, plus 1.

    Raises:
      ValueError: the disk is full; the file is as before.
    """
    present = len(self._rows)
    if num_rows <= present:
      return
    number = grown(present, num_rows)
    row_bytes = self._width * self._dtype.itemsize
    try:
      os.posix_fallocate(
        self._file.fileno(), present * row_bytes, (number - present) * row_bytes
      )
      memory = mmap.mmap(self._file.fileno(), number * row_bytes)
    except OSError as error:
      raise self._error(error) from error
    memory.madvise(mmap.MADV_RANDOM)
    self._rows = np.frombuffer(memory, self._dtype).reshape(-1, self._width)

  def read(self, rows: np.ndarray) -> np.ndarray:
    """Returns a copy of rows, by their numbers."""
    return np.take(self._rows, rows, axis=0, mode='clip')

  def write(self, rows: np.ndarray, values: np.ndarray) -> None:
    """Writes rows, for which there is space."""
    self._rows[rows] = values

  def copy(self) -> 'RowFile':
    """Returns a copy of the file, at once where the disk can share blocks.

    Raises:
      ValueError: the disk is full.
    """
    copy = RowFile(self._place, self._rows)
    copy.fit(len(self._rows))
    try:
      first, num_bytes = 0, self.num_bytes
      while first < num_bytes:
        first += os.copy_file_range(
          self._file.fileno(),
          copy._file.fileno(),
          num_bytes - first,
          first,
          first,
        )
    except OSError as error:
      raise self._error(error) from error
    return copy

  def _error(self, error: OSError) -> ValueError:
    return ValueError(
      f'{self._place.owner} keeps rows in a file in {self._place.directory}, '
      f'which failed: {error.strerror}. Give the storage a directory that the '
      'task can write to, on a disk with room for all rows and slots.'
    )


def grown(present: int, needed: int) -> int:
  """Returns how many rows to have room for, so that it seldom changes.

  Args:
    present: for how many there is room.
    needed: for how many there is to be.
  """
  spare = max(present // _SPARE_PART, _SPARE_ROWS)
  return max(needed, present + spare)
