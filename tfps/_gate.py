"""Many may be inside at once, until somebody needs to be alone."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading


class Gate:
  """A context manager for those who go in; `closed` is for who must be alone.

  Who comes while the gate is closed, or about to be, waits outside.

  Attributes:
    num_entries: how often somebody has gone in.
    num_inside: how many are inside.
  """

  def __init__(self) -> None:
    self._condition = threading.Condition()
    self.num_inside = 0
    self._is_closed = False
    self.num_entries = 0

  def __enter__(self) -> 'Gate':
    with self._condition:
      self._condition.wait_for(lambda: not self._is_closed)
      self.num_inside += 1
      self.num_entries += 1
    return self

  def __exit__(self, *exc_info: object) -> None:
    with self._condition:
      self.num_inside -= 1
      self._condition.notify_all()

  def close(
    self,
    tell: Callable[[bool], object] = lambda rest: None,
    within_secs: float | None = None,
  ) -> None:
    """As `closed`, for ever."""
    with self._condition:
      self._condition.wait_for(lambda: not self._is_closed)
      self._is_closed = True
    tell(True)
    with self._condition:
      is_empty = self._condition.wait_for(
        lambda: not self.num_inside, within_secs
      )
    if not is_empty:
      self._open(tell)
      raise TimeoutError

  @contextlib.contextmanager
  def closed(
    self,
    tell: Callable[[bool], object] = lambda rest: None,
    within_secs: float | None = None,
  ) -> Iterator[None]:
    """Keeps others out, and waits until nobody is inside any more.

    Args:
      tell: called with True once nobody comes in any more, and with False
        before somebody may. It raises nothing.
      within_secs: how long to wait for those inside; None is for ever.

    Raises:
      TimeoutError: somebody is still inside. The gate is open.
    """
    self.close(tell, within_secs)
    try:
      yield
    finally:
      self._open(tell)

  def _open(self, tell: Callable[[bool], object]) -> None:
    tell(False)
    with self._condition:
      self._is_closed = False
      self._condition.notify_all()
