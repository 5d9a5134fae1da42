"""Ends what a process has ps execute that would never end, as one was lost.

What is executed on several tasks fails, as a rule, when one of them is lost.
But what waits on a task that is left, for what was to come of the other, may
wait for ever, and who executes it learns of no loss.
"""

from collections.abc import Callable
from collections.abc import Mapping
import time

from absl import logging

from tfps._compat import cancellation
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.recovery import cluster_changes

Incarnations = Mapping[int, int | None]


class StuckCallCanceller:
  """Looks after what one process executes.

  Args:
    calls: what that is.
    find: the incarnations of the ps, by index, as they are.
    known: likewise, as they were when they were last in use.
  """

  def __init__(
    self,
    calls: cancellation.Calls,
    find: Callable[[], Incarnations],
    known: Callable[[], Incarnations],
  ) -> None:
    self._calls = calls
    self._find = find
    self._known = known
    self._changes = cluster_changes.ClusterChanges()
    self._period = threads.Periodic(
      'tfps-overdue', timeouts.current().stuck_every_secs, self._look
    )

  def start(self) -> None:
    """Cancels from now on what does not end."""
    self._period.start()

  def stop(self) -> None:
    """Looks no more; twice is harmless."""
    self._period.stop()

  def _look(self) -> None:
    latest = time.monotonic() - timeouts.current().stuck_every_secs
    # Those of now: what begins meanwhile may have to do with ps that are back.
    long_ones = [
      call for call in self._calls.under_way() if call.since < latest
    ]
    if not long_ones or not self._changes.are(self._find(), self._known()):
      return
    logging.warning(
      'A ps is lost. What %s executes does not end, and is cancelled.',
      ', '.join(sorted({call.thread for call in long_ones})),
    )
    for call in long_ones:
      call.cancel()
