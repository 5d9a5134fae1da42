"""Has calls be cancelled with what they belong to, and nothing else.

`cancellation.context()` says which `CancellationManager` a function that is
called belongs to, and TensorFlow keeps that for the whole process: a function
that is called beside a coordinator's executions may be taken for one of them,
and if it fails, they are all cancelled.
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
  """Has each thread have its own."""

  def enter(self: Any) -> None:
    # What is called within something else may be cancelled by itself.
    _outer().append(cancellation.context())
    _own.manager = self._cancellation_manager

  def leave(self: Any, *exc_info: object) -> None:
    _own.manager = _outer().pop()

  cancellation.context = lambda: getattr(_own, 'manager', None)
  cancellation.CancellationManagerContext.__enter__ = enter
  cancellation.CancellationManagerContext.__exit__ = leave


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
  """What somebody is at.

  Attributes:
    manager: cancels it.
    since: when it began, by `time.monotonic`.
    thread: the name of the thread that is at it.
  """

  manager: cancellation.CancellationManager
  since: float = dataclasses.field(default_factory=time.monotonic)
  thread: str = dataclasses.field(
    default_factory=lambda: threading.current_thread().name
  )

  def cancel(self) -> None:
    """Ends it soon; harmless when repeated, or when it is over."""
    self.manager.start_cancel()


class Calls(cancellation.CancellationManager):
  """Calls that can be cancelled, or only those that are under way.

  TensorFlow's manager is of no use any more once it has cancelled something.
  Here each call has one of its own, which it shares with the call that it is
  made within.
  """

  __slots__ = ('_lock', '_under_way')

  def __init__(self) -> None:
    super().__init__()
    self._lock = threading.Lock()
    self._under_way: list[Call] = []

  @contextlib.contextmanager
  def one(self) -> Iterator[None]:
    """A call, for what this thread does within it."""
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
    """The calls that are under way now."""
    with self._lock:
      return self._under_way.copy()

  def cancel_those_under_way(self) -> None:
    """Cancels calls, but not those that are made from now on."""
    for call in self.under_way():
      call.cancel()

  # What a coordinator calls.

  def start_cancel(self) -> None:
    """Cancels all calls, and those that are made from now on."""
    super().start_cancel()
    self.cancel_those_under_way()

  def get_cancelable_function(
    self, concrete_function: Callable[..., Any]
  ) -> Callable[..., Any]:
    """A function each of whose calls is one of these."""

    def cancellable(*args: Any, **kwargs: Any) -> Any:
      with self.one():
        return concrete_function(*args, **kwargs)

    return cancellable


def _outer() -> list[Any]:
  if not hasattr(_own, 'outer'):
    _own.outer = []
  outer: list[Any] = _own.outer
  return outer
