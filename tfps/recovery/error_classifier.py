"""Trouble with tasks that are alive: for how long, and of what kind."""

from collections.abc import Collection
import math
import re
import time

from absl import logging

from tfps._utils import timeouts

_IS_OF_STRANGERS = re.compile(r'find a context_id|different device incarnation')
_TASK = re.compile(r'/job:(\w+)/replica:0/task:(\d+)')


class ErrorClassifier:
  """Calls that fail although nobody is lost."""

  def __init__(self) -> None:
    self._first = self._last = -math.inf

  def note(self) -> float:
    """To be called of each failure; since when there has been trouble, in s."""
    now = time.monotonic()
    if now > self._last + timeouts.current().failure_memory_secs:
      self._first = now
    self._last = now
    return now - self._first

  def strangers(self, failure: Exception, ps: Collection[int]) -> set[int]:
    """The ps that have to be connected to anew, according to a failure.

    The runtime goes on with what was there before, and not by itself anew. A
    ps that was just lost, or is at a repair, fails in the same way, so that
    there has to be trouble for some seconds.

    Args:
      failure: of a call.
      ps: all there are, of which any may be meant where none is named.
    """
    secs, text = self.note(), str(failure)
    is_early = secs < timeouts.current().stranger_secs
    if is_early or not _IS_OF_STRANGERS.search(text):
      return set()
    task = _TASK.search(text)
    if task is not None and task[1] != 'ps':
      return set()
    self._first = self._last = -math.inf
    found = set(ps) if task is None else {int(task[2])}
    logging.warning('This process is unknown to the ps of %s.', sorted(found))
    return found
