"""Lock that lets a thread run alone, once all work under way has ended."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import threading

from absl import logging

from tfps import errors
from tfps._utils import deadlines


class OccupiedError(TimeoutError):
  """The lock could not be closed in time.

  Attributes:
    names: the threads or tasks inside, or the one that has closed the lock.
  """

  def __init__(self, names: list[str]) -> None:
    super().__init__(f'{", ".join(names)} is not done.')
    self.names = names


@dataclasses.dataclass(frozen=True)
class Hurry:
  """Action that makes those inside leave, while the lock is being closed.

  Attributes:
    after_secs: how long to wait before the function is called, and until it is
      called again.
    function: gets the names of those inside; raises nothing.
  """

  after_secs: float
  function: Callable[[list[str]], object]


class QuiesceLock:
  """Lock that many threads hold at once, and that one thread can close.

  States: open, closing, closed. While it is open, threads enter (`with lock:`)
  and leave at will. `close` and `closed` stop further entries at once
  (closing), and return when everybody inside has left (closed); if that takes
  too long, the lock opens again. Entries wait until it is open.

  Entries are named by their threads, or as `entered` says.

  Attributes:
    num_entries: how often the lock was entered.
  """

  def __init__(self) -> None:
    self._condition = threading.Condition()
    self._inside: list[str] = []
    self._closed_by: str | None = None
    self.num_entries = 0

  @property
  def num_inside(self) -> int:
    """Number of entries that have not left yet."""
    return len(self._inside)

  @property
  def is_closed(self) -> bool:
    """True if a thread has closed the lock, or waits for entries to leave."""
    return self._closed_by is not None

  def __enter__(self) -> 'QuiesceLock':
    self._enter(threading.current_thread().name)
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._leave(threading.current_thread().name)

  @contextlib.contextmanager
  def entered(self, name: str) -> Iterator[None]:
    """Enters under another name than the thread's."""
    self._enter(name)
    try:
      yield
    finally:
      self._leave(name)

  def close(
    self,
    on_change: Callable[[bool], object] = lambda is_closed: None,
    within_secs: float | None = None,
    *,
    hurry: Hurry | None = None,
  ) -> None:
    """Closes the lock for good; see `closed` for arguments and errors."""
    deadline = deadlines.after(within_secs)
    is_shut = False
    while True:
      until = deadline
      if hurry is not None:
        until = deadlines.earliest(deadline, deadlines.after(hurry.after_secs))
      if not is_shut and self._shut(until):
        is_shut = True
        on_change(True)
      names = self._wait_until_empty(until)
      if is_shut and not names:
        return
      if deadlines.is_over(deadline):
        break
      # Another thread may have closed the lock and wait for those inside.
      if hurry is not None and names:
        hurry.function(names)
    if is_shut:
      self._open(on_change)
    else:
      names = [self._closed_by or 'another thread']
    raise OccupiedError(names)

  @contextlib.contextmanager
  def closed(
    self,
    on_change: Callable[[bool], object] = lambda is_closed: None,
    within_secs: float | None = None,
    *,
    hurry: Hurry | None = None,
  ) -> Iterator[None]:
    """Closes the lock within a context, once everybody inside has left.

    Args:
      on_change: called with True once nobody can enter, and with False before
        the lock opens. It raises nothing.
      within_secs: how long to wait for those inside, and for another thread
        that has closed the lock; None waits without limit.
      hurry: makes those inside leave.

    Raises:
      OccupiedError: some are still inside, and the lock is open again; or
        another thread has it closed.
    """
    self.close(on_change, within_secs, hurry=hurry)
    try:
      yield
    finally:
      self._open(on_change)

  def _enter(self, name: str) -> None:
    with self._condition:
      self._condition.wait_for(lambda: self._closed_by is None)
      self._inside.append(name)
      self.num_entries += 1

  def _leave(self, name: str) -> None:
    with self._condition:
      self._inside.remove(name)
      self._condition.notify_all()

  def _shut(self, deadline: float | None) -> bool:
    """Stops further entries; returns False if another thread has done so."""
    with self._condition:
      deadlines.wait_for(
        self._condition, lambda: self._closed_by is None, deadline
      )
      if self._closed_by is not None:
        return False
      self._closed_by = threading.current_thread().name
      return True

  def _wait_until_empty(self, deadline: float | None) -> list[str]:
    """Returns the names of those who are still inside at the deadline."""
    with self._condition:
      deadlines.wait_for(self._condition, lambda: not self._inside, deadline)
      return sorted(set(self._inside))

  def _open(self, on_change: Callable[[bool], object]) -> None:
    on_change(False)
    with self._condition:
      self._closed_by = None
      self._condition.notify_all()


@contextlib.contextmanager
def quiesced(
  lock: QuiesceLock,
  timeout_secs: float,
  on_change: Callable[[bool], object] = lambda is_closed: None,
  *,
  hurry: Hurry | None = None,
) -> Iterator[None]:
  """Closes the lock of executions on ps within a context.

  Args:
    lock: held by whatever executes something on ps.
    timeout_secs: how long to wait for executions to end.
    on_change: as for `QuiesceLock.closed`.
    hurry: as for `QuiesceLock.closed`.

  Raises:
    errors.DeadlineError: names the tasks or threads that still execute.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(lock.closed(on_change, timeout_secs, hurry=hurry))
    except OccupiedError as error:
      raise errors.DeadlineError(
        f'After {timeout_secs:g} seconds, {", ".join(error.names)} is still '
        'executing something on the ps, which must stop while variables are '
        'saved or restored. If a task has stopped answering, restart it.'
      ) from error
    yield


def quiesce_for_last_snapshot(
  lock: QuiesceLock,
  timeout_secs: float,
  on_change: Callable[[bool], object] = lambda is_closed: None,
) -> bool:
  """Closes the lock of executions on ps for good, before training ends.

  Args:
    lock: held by whatever executes something on ps.
    timeout_secs: how long to wait for executions to end.
    on_change: as for `QuiesceLock.closed`.

  Returns:
    Whether it is closed; if not, that is logged.
  """
  try:
    lock.close(on_change, timeout_secs)
  except OccupiedError as error:
    logging.warning('No last snapshot is saved: %s', error)
    return False
  return True
