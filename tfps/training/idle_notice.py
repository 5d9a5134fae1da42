"""Notice to synchronous workers that a coordinator schedules nothing more."""

from collections.abc import Callable
import contextlib
import time
from typing import Any

import tensorflow as tf

from tfps._compat import closure_queue
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.updates import sessions

Surviving = Callable[[Callable[[], Any]], Any]


class IdleNotice:
  """Tells idle workers that nothing more is scheduled, so busy ones don't wait.

  Without synchronous updates, all methods do nothing.

  Args:
    strategy: the coordinator's.
    queue: the coordinator's queue of scheduled functions.
  """

  def __init__(
    self, strategy: tf.distribute.Strategy, queue: closure_queue.Queue
  ) -> None:
    self._strategy = strategy
    self._queue = queue
    self._is_on = False

  def begin(self, timeout_secs: float | None, surviving: Surviving) -> None:
    """Announces it once no function is queued; see `Coordinator.rest`.

    Args:
      timeout_secs: how many seconds to wait until all functions are executing.
      surviving: calls a function that uses a ps, again after a repair.
    """
    sync_session = sessions.of(self._strategy)
    if not sync_session.waits or self._is_on:
      return
    deadline = deadlines.after(timeout_secs)
    while self._queue.num_queued and not self._queue.failed:
      if deadlines.is_over(deadline):
        return  # the wait that follows reports the tasks
      time.sleep(timeouts.current().short_poll_secs)
    self._is_on = True
    surviving(sync_session.executions.rest)

  def begin_at_once(self) -> None:
    """Announces it after all queued functions were cancelled."""
    self._is_on = True
    sessions.of(self._strategy).executions.try_to_rest(True)

  def awaited(self) -> contextlib.AbstractContextManager[None]:
    """Announces it while the caller waits for a result, scheduling nothing."""
    return sessions.of(self._strategy).executions.awaited()

  def end(
    self,
    is_done: Callable[[], bool],
    timeout_secs: float | None,
    surviving: Surviving,
  ) -> None:
    """Withdraws the notice; called before a function is scheduled.

    Args:
      is_done: returns whether all scheduled functions have ended.
      timeout_secs: how many seconds to wait for that.
      surviving: as for `begin`.
    """
    sync_session = sessions.of(self._strategy)
    if not sync_session.waits:
      return
    deadline = deadlines.after(timeout_secs)
    while not (done := is_done()) and self._is_on:
      if deadlines.is_over(deadline):
        break  # scheduling reports the timeout
      time.sleep(timeouts.current().short_poll_secs)
    if self._is_on or done:
      self._is_on = False
      surviving(sync_session.start_afresh)
