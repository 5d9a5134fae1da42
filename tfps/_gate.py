"""Many may be inside at once, until somebody needs to be alone."""

from collections.abc import Iterator
import contextlib
import threading


class Gate:
  """A context manager for those who go in; `closed` is for who must be alone.

  Who comes while the gate is closed, or about to be, waits outside.

  Attributes:
    num_entries: how often somebody has gone in.
  """

  def __init__(self) -> None:
    self._condition = threading.Condition()
    self._num_inside = 0
    self._is_closed = False
    self.num_entries = 0

  def __enter__(self) -> 'Gate':
    with self._condition:
      self._condition.wait_for(lambda: not self._is_closed)
      self._num_inside += 1
      self.num_entries += 1
    return self

  def __exit__(self, *exc_info: object) -> None:
    with self._condition:
      self._num_inside -= 1
      self._condition.notify_all()

  def close(self) -> None:
    """As `closed`, for ever."""
    with self._condition:
      self._condition.wait_for(lambda: not self._is_closed)
      self._is_closed = True
      self._condition.wait_for(lambda: not self._num_inside)

  @contextlib.contextmanager
  def closed(self) -> Iterator[None]:
    """Keeps others out, and waits until nobody is inside any more."""
    self.close()
    try:
      yield
    finally:
      with self._condition:
        self._is_closed = False
        self._condition.notify_all()
