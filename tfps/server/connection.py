"""What goes on in the background as long as this process stays connected.

A process has one connection at a time. When it connects anew, what was made by
the one before is no more, and to go on with it is fatal.
"""

from collections.abc import Callable
import weakref

_stops: list[weakref.WeakMethod[Callable[[], object]]] = []


def until_the_next(stop: Callable[[], object]) -> None:
  """Has something called before this process connects anew.

  Args:
    stop: a method, which may be called twice. Its object may be collected.
  """
  _stops.append(weakref.WeakMethod(stop))


def end() -> None:
  """Ends what goes on, since this process is about to connect anew."""
  while _stops:
    if stop := _stops.pop()():
      stop()
