"""Arrays that another process of the same host reads where they are.

The memory has no name. Who is to read it is handed its descriptor, and nothing
is left of it once all processes that have one are gone, however they ended.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import mmap
import os

import numpy as np

_ALIGNED_TO = 64
_ROOM = 1.25  # for rows, which may be more the next time

# Of an array: the name of its type, and its shape.
Description = tuple[str, list[int]]


class Memory:
  """What a process writes for another one to read.

  Attributes:
    descriptor: by which another process gets it; -1 before anything is written.
    number: of the memory, which changes where arrays have outgrown one. A
      descriptor may be that of the one before.
  """

  def __init__(self) -> None:
    self.descriptor = -1
    self.number = 0
    self._size = 0
    self._mapped: mmap.mmap | None = None

  def write(self, arrays: Sequence[np.ndarray]) -> list[Description]:
    """Copies arrays into it; tells how to `read` them."""
    described = [(array.dtype.name, list(array.shape)) for array in arrays]
    self._make_room(num_bytes(described))
    for array, own in zip(arrays, read(self._mapped, described), strict=True):
      own[...] = array
    return described

  def close(self) -> None:
    """Lets go of it; what others have of it stays."""
    if self.descriptor >= 0:
      os.close(self.descriptor)
    self.descriptor, self._size, self._mapped = -1, 0, None

  def _make_room(self, size: int) -> None:
    if self._mapped is not None and size <= self._size:
      return
    self.close()
    self._size = max(int(size * _ROOM), mmap.PAGESIZE)
    self.number += 1
    self.descriptor = os.memfd_create('tfps')
    os.truncate(self.descriptor, self._size)
    self._mapped = mmap.mmap(self.descriptor, self._size)


def opened(descriptor: int) -> mmap.mmap:
  """Another process' memory; the descriptor may be closed then."""
  return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def read(
  mapped: mmap.mmap | None, described: Sequence[Description]
) -> list[np.ndarray]:
  """The arrays that are there, which are not copied.

  Raises:
    TypeError: the memory has no room for such arrays.
  """
  return [
    np.ndarray(shape, name, buffer=mapped, offset=first)
    for (name, shape), first in zip(
      described, _offsets(described), strict=False
    )
  ]


def num_bytes(described: Sequence[Description]) -> int:
  """The room that arrays take."""
  return list(_offsets(described))[-1]


def _offsets(described: Sequence[Description]) -> Iterator[int]:
  """Where each array begins, and where the last ends."""
  first = 0
  yield first
  for name, shape in described:
    first += int(np.prod(shape, dtype=np.int64)) * np.dtype(name).itemsize
    first += -first % _ALIGNED_TO
    yield first
