"""Deadlines by `time.monotonic`, and waits that end at them; None is never.

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
  """Returns the deadline that is so many seconds from now."""
  return None if timeout_secs is None else time.monotonic() + timeout_secs


def seconds_until(deadline: float | None) -> float | None:
  """Returns the seconds that are left, at least 0; None for no deadline."""
  return None if deadline is None else max(0.0, deadline - time.monotonic())


def earliest(*deadlines: float | None) -> float | None:
  """Returns the first of several deadlines."""
  return min((d for d in deadlines if d is not None), default=None)


def wait_for(
  condition: threading.Condition,
  predicate: Callable[[], _Found],
  deadline: float | None,
) -> _Found:
  """Waits until a predicate is true or the deadline has passed.

  Args:
    condition: held by this thread, and notified when the predicate may change.
    predicate: called with the condition held.
    deadline: by `time.monotonic`; None waits without limit.

  Returns:
    The predicate's last value, true or not, as `Condition.wait_for` does.
  """
  while not (found := predicate()) and not is_over(deadline):
    condition.wait(_slice(deadline))
  return found


def wait_until(
  wait: Callable[[float], _Found], deadline: float | None
) -> _Found:
  """Repeats a short wait until it returns true or the deadline has passed.

  Args:
    wait: waits for at most the seconds that it gets.
    deadline: by `time.monotonic`; None waits without limit.

  Returns:
    The last value of `wait`.
  """
  while not (found := wait(_slice(deadline))) and not is_over(deadline):
    pass
  return found


def is_over(deadline: float | None) -> bool:
  """Returns whether the deadline has passed."""
  return seconds_until(deadline) == 0


def _slice(deadline: float | None) -> float:
  left = seconds_until(deadline)
  secs = timeouts.current().wake_secs
  return secs if left is None else min(secs, left)
