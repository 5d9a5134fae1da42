"""Background activities that must stop before this process reconnects.

A process has one connection to a cluster at a time. When it reconnects, objects
of the connection before are gone, and using them is fatal.
"""

from collections.abc import Callable
import weakref

from tfps._compat import server_def

_stops: list[weakref.WeakMethod[Callable[[], object]]] = []


def stop_before_next(stop: Callable[[], object]) -> None:
  """Registers an activity of the current connection.

  Args:
    stop: a bound method that stops it, and may be called twice. It is kept by a
      weak reference.
  """
  server_def.call_before_connecting(stop_all)
  _stops.append(weakref.WeakMethod(stop))


def stop_all() -> None:
  """Stops all registered activities, before this process reconnects."""
  while _stops:
    if stop := _stops.pop()():
      stop()
