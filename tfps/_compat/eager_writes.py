"""Count of the writes to variables outside of functions.

Variables note their own writes (`survivors`). A checkpoint is restored by raw
operations, maybe in a function, so that all counts take note of that.
"""

from collections.abc import Iterator
import contextlib
import functools
import itertools
import threading
from typing import Any
import weakref

from tensorflow.python.checkpoint import functional_saver

_ALL: 'weakref.WeakSet[EagerWrites]' = weakref.WeakSet()


class EagerWrites:
  """Number of the last write, for who reads variables and writes them down.

  A write is noted once it is done. So if `last` is taken before values are
  read, and still the same later, they are the current ones.

  Attributes:
    last: different after each write.
  """

  def __init__(self) -> None:
    self.last = 0
    self._numbers = itertools.count(1)
    self._own = threading.local()
    _note_checkpoints()
    _ALL.add(self)

  def note(self) -> None:
    """Notes a write."""
    if not getattr(self._own, 'are_left_out', False):
      self.last = next(self._numbers)

  @contextlib.contextmanager
  def left_out(self) -> Iterator[None]:
    """Leaves out this thread's writes within a context."""
    self._own.are_left_out = True
    try:
      yield
    finally:
      self._own.are_left_out = False


@functools.cache
def _note_checkpoints() -> None:
  saver = functional_saver.MultiDeviceSaver
  restore = saver.restore

  @functools.wraps(restore)
  def noted(*args: Any, **kwargs: Any) -> Any:
    try:
      return restore(*args, **kwargs)
    finally:  # some values may have been restored
      for writes in tuple(_ALL):
        writes.note()

  saver.restore = noted
