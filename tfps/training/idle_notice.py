"""Tells workers that wait for each other when nothing more is scheduled."""

from collections.abc import Callable
import contextlib
import time
from typing import Any

import tensorflow as tf

from tfps._compat import closure_queue
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.updates.sync import session as session_lib

Surviving = Callable[[Callable[[], Any]], Any]


class IdleNotice:
  """Those of one coordinator.

  Args:
    strategy: the coordinator's; its workers may wait for each other.
    queue: of what is scheduled.
  """

  def __init__(
    self, strategy: tf.distribute.Strategy, queue: closure_queue.Queue
  ) -> None:
    self._strategy = strategy
    self._queue = queue
    self._is_on = False

  def begin(self, timeout_secs: float | None, surviving: Surviving) -> None:
    """See `Coordinator.rest`.

    Args:
      timeout_secs: how long to wait until all is begun.
      surviving: does what this process does on a ps.
    """
    sync_session = session_lib.of(self._strategy)
    if sync_session is None or self._is_on:
      return
    deadline = deadlines.after(timeout_secs)
    while self._queue.num_queued and not self._queue.failed:
      if deadlines.is_over(deadline):
        return  # who waits for what is scheduled names the tasks
      time.sleep(timeouts.current().short_poll_secs)
    self._is_on = True
    surviving(sync_session.rest)

  def begin_at_once(self) -> None:
    """To be called once what was scheduled and not begun is cancelled."""
    sync_session = session_lib.of(self._strategy)
    if sync_session is not None:
      self._is_on = True
      sync_session.try_to_rest(True)

  def awaited(self) -> contextlib.AbstractContextManager[None]:
    """Within which nothing is scheduled, for the caller waits for a result."""
    sync_session = session_lib.of(self._strategy)
    return (
      contextlib.nullcontext()
      if sync_session is None
      else sync_session.awaited()
    )

  def end(
    self,
    is_done: Callable[[], bool],
    timeout_secs: float | None,
    surviving: Surviving,
  ) -> None:
    """To be called before something is scheduled.

    Args:
      is_done: whether all that was scheduled has ended.
      timeout_secs: how long to wait for that.
      surviving: as for `begin`.
    """
    sync_session = session_lib.of(self._strategy)
    if sync_session is None:
      return
    deadline = deadlines.after(timeout_secs)
    while not (done := is_done()) and self._is_on:
      if deadlines.is_over(deadline):
        break  # as it will be for what is about to be scheduled
      time.sleep(timeouts.current().short_poll_secs)
    if self._is_on or done:
      self._is_on = False
      surviving(sync_session.start_afresh)
