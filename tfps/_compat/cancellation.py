"""Has a thread's calls be cancelled with that thread's work, not others'.

`cancellation.context()` says which `CancellationManager` a function that is
called belongs to, and TensorFlow keeps that for the whole process: a function
that is called beside a coordinator's executions may be taken for one of them,
and if it fails, they are all cancelled.
"""

import functools
import threading
from typing import Any

from tensorflow.python.eager import cancellation

_own = threading.local()


@functools.cache
def keep_apart() -> None:
  """Has each thread have its own."""

  def enter(self: Any) -> None:
    _own.manager = self._cancellation_manager

  def leave(self: Any, *exc_info: object) -> None:
    _own.manager = None

  cancellation.context = lambda: getattr(_own, 'manager', None)
  cancellation.CancellationManagerContext.__enter__ = enter
  cancellation.CancellationManagerContext.__exit__ = leave
