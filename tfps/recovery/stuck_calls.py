"""Cancels calls that hang because a ps that they depend on was lost.

An execution on several tasks usually fails when one of them is lost. But an op
on a surviving task that waits for a value from the lost one may wait forever,
and its caller never learns of the loss.
"""

from collections.abc import Callable
from collections.abc import Mapping
import time

from absl import logging

from tfps._compat import cancellation
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.recovery import error_classifier

Incarnations = Mapping[int, int | None]


class StuckCallCanceller:
  """Cancels long calls of this process once a ps has changed.

  Args:
    calls: calls of this process.
    find: returns the current incarnations of the ps, by index.
    known: returns their incarnations when they were last in use.
    on_stuck: called before calls are cancelled; ends what a call waits for and
      cancelling does not end.
  """

  def __init__(
    self,
    calls: cancellation.Calls,
    find: Callable[[], Incarnations],
    known: Callable[[], Incarnations],
    on_stuck: Callable[[], object],
  ) -> None:
    self._calls = calls
    self._find = find
    self._known = known
    self._on_stuck = on_stuck
    self._changes = error_classifier.ChangeDetector()
    self._period = threads.Periodic(
      'tfps-stuck-calls', timeouts.current().stuck_every_secs, self._look
    )

  def start(self) -> None:
    """Starts the thread that cancels stuck calls."""
    self._period.start()

  def stop(self) -> None:
    """Stops the thread; stopping twice is harmless."""
    self._period.stop()

  def _look(self) -> None:
    latest = time.monotonic() - timeouts.current().stuck_every_secs
    # Listed before the look: calls that begin later may use ps that are back.
    long_ones = [
      call for call in self._calls.under_way() if call.since < latest
    ]
    if not long_ones or not self._changes.has_changed(
      self._find(), self._known()
    ):
      return
    logging.warning(
      'A ps is lost: calls of threads %s do not end and are cancelled.',
      ', '.join(sorted({call.thread for call in long_ones})),
    )
    self._on_stuck()
    for call in long_ones:
      call.cancel()
