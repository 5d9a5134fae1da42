"""Many may be inside at once, until somebody needs to be alone."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import threading

from tfps._utils import deadlines


class OccupiedError(TimeoutError):
  """Who needs to be alone has waited in vain.

  Attributes:
    names: who is inside, or has closed the gate.
  """

  def __init__(self, names: list[str]) -> None:
    super().__init__(f'{", ".join(names)} is not done.')
    self.names = names


@dataclasses.dataclass(frozen=True)
class Hurry:
  """What to do about those who stay inside.

  Attributes:
    after_secs: when; nobody goes in meanwhile.
    function: gets their names, and raises nothing.
  """

  after_secs: float
  function: Callable[[list[str]], object]


class QuiesceLock:
  """A context manager for those who go in; `closed` is for who must be alone.

  Who comes while the gate is closed, or about to be, waits outside. Whoever is
  waited for is named as its thread is, unless it has entered by another name.

  Attributes:
    num_entries: how often somebody has gone in.
  """

  def __init__(self) -> None:
    self._condition = threading.Condition()
    self._inside: list[str] = []
    self._closed_by: str | None = None
    self.num_entries = 0

  @property
  def num_inside(self) -> int:
    """How many are inside."""
    return len(self._inside)

  def __enter__(self) -> 'QuiesceLock':
    self._enter(threading.current_thread().name)
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._leave(threading.current_thread().name)

  @contextlib.contextmanager
  def entered(self, name: str) -> Iterator[None]:
    """Is inside by a name."""
    self._enter(name)
    try:
      yield
    finally:
      self._leave(name)

  def close(
    self,
    tell: Callable[[bool], object] = lambda rest: None,
    within_secs: float | None = None,
    *,
    hurry: Hurry | None = None,
  ) -> None:
    """As `closed`, for ever."""
    deadline = deadlines.after(within_secs)
    self._shut(deadline)
    tell(True)
    if hurry is not None:
      first = deadlines.earliest(deadline, deadlines.after(hurry.after_secs))
      if names := self._wait_for_those_inside(first):
        hurry.function(names)
    if names := self._wait_for_those_inside(deadline):
      self._open(tell)
      raise OccupiedError(names)

  @contextlib.contextmanager
  def closed(
    self,
    tell: Callable[[bool], object] = lambda rest: None,
    within_secs: float | None = None,
    *,
    hurry: Hurry | None = None,
  ) -> Iterator[None]:
    """Keeps others out, and waits until nobody is inside any more.

    Args:
      tell: called with True once nobody comes in any more, and with False
        before somebody may. It raises nothing.
      within_secs: how long to wait for those inside, and for others who are
        alone; None is for ever.
      hurry: what to do about those who stay inside.

    Raises:
      OccupiedError: somebody is still inside, or alone. If nobody is alone,
        the gate is open.
    """
    self.close(tell, within_secs, hurry=hurry)
    try:
      yield
    finally:
      self._open(tell)

  def _enter(self, name: str) -> None:
    with self._condition:
      self._condition.wait_for(lambda: self._closed_by is None)
      self._inside.append(name)
      self.num_entries += 1

  def _leave(self, name: str) -> None:
    with self._condition:
      self._inside.remove(name)
      self._condition.notify_all()

  def _shut(self, deadline: float | None) -> None:
    """Lets nobody in any more."""
    with self._condition:
      deadlines.wait_for(
        self._condition, lambda: self._closed_by is None, deadline
      )
      if self._closed_by is not None:
        raise OccupiedError([self._closed_by])
      self._closed_by = threading.current_thread().name

  def _wait_for_those_inside(self, deadline: float | None) -> list[str]:
    """The names of those who are still inside at the deadline."""
    with self._condition:
      deadlines.wait_for(self._condition, lambda: not self._inside, deadline)
      return sorted(set(self._inside))

  def _open(self, tell: Callable[[bool], object]) -> None:
    tell(False)
    with self._condition:
      self._closed_by = None
      self._condition.notify_all()
