"""Points in time until which to wait; None is for ever.

Waits are made of short ones: a signal that reached another thread is handled,
for example raised as `KeyboardInterrupt`, once the main thread wakes up.
"""

from collections.abc import Callable
import threading
import time
from typing import TypeVar

from tfps._utils import timeouts

_Found = TypeVar('_Found')


def after(timeout_secs: float | None) -> float | None:
  """The point so many seconds from now, by `time.monotonic`."""
  return None if timeout_secs is None else time.monotonic() + timeout_secs


def seconds_until(deadline: float | None) -> float | None:
  """How long is left, never less than 0."""
  return None if deadline is None else max(0.0, deadline - time.monotonic())


def earliest(*deadlines: float | None) -> float | None:
  """The first of several deadlines."""
  return min((d for d in deadlines if d is not None), default=None)


def wait_for(
  condition: threading.Condition,
  predicate: Callable[[], _Found],
  deadline: float | None,
) -> _Found:
  """As `Condition.wait_for`: the predicate's last value, true or not."""
  while not (found := predicate()) and not is_over(deadline):
    condition.wait(_slice(deadline))
  return found


def wait_until(
  wait: Callable[[float], _Found], deadline: float | None
) -> _Found:
  """Calls a wait of so many seconds until it says true or time is over."""
  while not (found := wait(_slice(deadline))) and not is_over(deadline):
    pass
  return found


def is_over(deadline: float | None) -> bool:
  """Whether the deadline has passed."""
  return seconds_until(deadline) == 0


def _slice(deadline: float | None) -> float:
  left = seconds_until(deadline)
  secs = timeouts.current().wake_secs
  return secs if left is None else min(secs, left)
