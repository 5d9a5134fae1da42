"""Trouble with tasks that are alive: for how long, and of what kind."""

import math
import re
import time

_CALM_SECS = 60.0  # after which trouble is new trouble
_IS_OF_STRANGERS = re.compile(r'find a context_id|different device incarnation')
_PS = re.compile(r'/job:ps/replica:0/task:(\d+)')


class Trouble:
  """Calls that fail although nobody is lost."""

  def __init__(self) -> None:
    self._first = self._last = -math.inf

  def note(self) -> float:
    """To be called of each failure; since when there has been trouble, in s."""
    now = time.monotonic()
    if now > self._last + _CALM_SECS:
      self._first = now
    self._last = now
    return now - self._first


def stranger(failure: Exception) -> int | None:
  """The ps that, says a failure, is not the one that was expected there."""
  text = str(failure)
  found = _PS.search(text) if _IS_OF_STRANGERS.search(text) else None
  return int(found[1]) if found else None
