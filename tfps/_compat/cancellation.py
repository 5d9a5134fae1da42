"""Cancellation of calls by thread, without effect on other threads' calls.

`cancellation.context()` is the `CancellationManager` of the functions that are
called, and TensorFlow keeps one for the whole process: a function that is
called beside a coordinator's executions may be taken for one of them, and if it
fails, they are all cancelled.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import threading
import time
from typing import Any

from tensorflow.python.eager import cancellation

_own = threading.local()


@functools.cache
def keep_apart() -> None:
  """Makes the current cancellation manager one of the thread, not the process.

  Repeated calls do nothing.
  """

  def enter(self: Any) -> None:
    # A nested call may be cancelled without the outer one.
    _outer().append(cancellation.context())
    _own.manager = self._cancellation_manager

  def leave(self: Any, *exc_info: object) -> None:
    _own.manager = _outer().pop()

  cancellation.context = lambda: getattr(_own, 'manager', None)
  cancellation.CancellationManagerContext.__enter__ = enter
  cancellation.CancellationManagerContext.__exit__ = leave


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
  """A call that is under way.

  Attributes:
    manager: cancels the call.
    since: when it began, by `time.monotonic`.
    thread: the name of the thread that makes it.
  """

  manager: cancellation.CancellationManager
  since: float = dataclasses.field(default_factory=time.monotonic)
  thread: str = dataclasses.field(
    default_factory=lambda: threading.current_thread().name
  )

  def cancel(self) -> None:
    """Cancels the call; harmless when repeated, or when it has ended."""
    self.manager.start_cancel()


class Calls(cancellation.CancellationManager):
  """Cancellation manager that can also cancel only the calls under way.

  TensorFlow's manager is useless once it has cancelled something. Here each
  call has one of its own, which it shares with the call that it is made within.
  """

  __slots__ = ('_lock', '_under_way')

  def __init__(self) -> None:
    super().__init__()
    self._lock = threading.Lock()
    self._under_way: list[Call] = []

  @contextlib.contextmanager
  def one(self) -> Iterator[None]:
    """Makes what this thread executes within the context one call."""
    keep_apart()
    call = Call(cancellation.context() or cancellation.CancellationManager())
    with self._lock:
      self._under_way.append(call)
      if self.is_cancelled:
        call.cancel()
    try:
      with cancellation.CancellationManagerContext(call.manager):
        yield
    finally:
      with self._lock:
        self._under_way.remove(call)

  def under_way(self) -> list[Call]:
    """Returns the calls that are under way now."""
    with self._lock:
      return self._under_way.copy()

  def cancel_those_under_way(self) -> None:
    """Cancels the calls under way, but not those that begin later."""
    for call in self.under_way():
      call.cancel()

  # Called by TensorFlow's coordinator.

  def start_cancel(self) -> None:
    """Cancels the calls under way and those that begin later."""
    super().start_cancel()
    self.cancel_those_under_way()

  def get_cancelable_function(
    self, concrete_function: Callable[..., Any]
  ) -> Callable[..., Any]:
    """Returns a function whose calls are each cancelled through this object."""

    def cancellable(*args: Any, **kwargs: Any) -> Any:
      with self.one():
        return concrete_function(*args, **kwargs)

    return cancellable


def _outer() -> list[Any]:
  if not hasattr(_own, 'outer'):
    _own.outer = []
  outer: list[Any] = _own.outer
  return outer
