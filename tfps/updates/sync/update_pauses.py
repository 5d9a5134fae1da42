"""Pauses between two steps, in which no worker makes updates."""

from collections.abc import Iterator
import contextlib
import threading
import time

import tensorflow as tf

from tfps._utils import timeouts
from tfps.updates.sync import protocol_ops as protocol_ops_lib


class UpdatePauses:
  """Pauses the updates of synchronized workers, one pause at a time.

  Args:
    ps: calls the operations on the synchronization state.
    timeout_secs: how long an update that is under way may take.
  """

  def __init__(
    self, ps: protocol_ops_lib.HostCalls, timeout_secs: float
  ) -> None:
    self._ps = ps
    self._timeout_secs = timeout_secs
    self._lock = threading.Lock()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Returns a context in which no worker makes updates.

    It is entered between two steps, each of which may make several updates. One
    thread at a time can be in it.

    Raises:
      tf.errors.DeadlineExceededError: an update did not end in time.
      tf.errors.AbortedError: `start` ended the pause early, so that there may
        have been updates.
      tf.errors.OpError: a ps is lost, or a worker that is making an update.
    """
    deadline = time.monotonic() + self._timeout_secs
    with self._lock:
      try:
        while self._pause(1)[0]:
          if time.monotonic() > deadline:
            raise tf.errors.DeadlineExceededError(
              None,
              None,
              f'An update did not end within {self._timeout_secs:g} '
              'seconds, the timeout_secs of the update policy.',
            )
          time.sleep(timeouts.current().short_poll_secs)
        yield
      except BaseException:
        self._pause(0)
        raise
      if not self._pause(0)[1]:
        raise tf.errors.AbortedError(
          None, None, 'Training was restarted while updates were paused.'
        )

  def _pause(self, value: int) -> tuple[int, int]:
    """Returns the number of running updates, and whether it was paused."""
    under_way, before = self._ps.call('pause', value).numpy().tolist()
    return under_way, before
