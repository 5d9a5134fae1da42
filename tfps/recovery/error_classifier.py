"""Classification of failures of calls: stale connections, cancelled ones."""

from collections.abc import Collection
import math
import re
import time

from absl import logging
import tensorflow as tf

from tfps._utils import timeouts

_IS_STALE_CONNECTION = re.compile(
  r'find a context_id|different device incarnation'
)
_TASK = re.compile(r'/job:(\w+)/replica:0/task:(\d+)')


class ErrorClassifier:
  """Classifies failures of calls to ps that are all alive."""

  def __init__(self) -> None:
    self._first = self._last = -math.inf

  def record(self) -> float:
    """Records a failure.

    Returns:
      Seconds since the first failure of the current series. A series ends
      after a period without failures.
    """
    now = time.monotonic()
    if now > self._last + timeouts.current().failure_memory_secs:
      self._first = now
    self._last = now
    return now - self._first

  def ps_to_reconnect(
    self, failure: Exception, ps: Collection[int]
  ) -> set[int]:
    """Records a failure and returns the ps that need a new connection.

    TensorFlow keeps using a stale connection and does not renew it by itself. A
    ps that was just lost, or is being repaired, fails in the same way, so that
    failures must have lasted for some seconds.

    Args:
      failure: of a call.
      ps: indices of all ps; all are returned if the failure names no task.
    """
    secs, text = self.record(), str(failure)
    is_early = secs < timeouts.current().stranger_secs
    if is_early or not _IS_STALE_CONNECTION.search(text):
      return set()
    task = _TASK.search(text)
    if task is not None and task[1] != 'ps':
      return set()
    self._first = self._last = -math.inf
    found = set(ps) if task is None else {int(task[2])}
    logging.warning(
      'Connections to ps %s are stale and are renewed.', sorted(found)
    )
    return found


def is_cancelled_transfer(failure: Exception) -> bool:
  """Returns whether an op was cancelled while it received a remote value.

  If a part of a function fails on one task, TensorFlow cancels the parts on
  other tasks and may report the cancellation instead of its cause.
  """
  text = 'RecvFromRemoteAsync is cancelled'
  return isinstance(failure, tf.errors.CancelledError) and text in str(failure)
