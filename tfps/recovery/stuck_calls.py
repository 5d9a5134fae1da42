"""Cancels calls that hang because a ps that they depend on was lost.

An execution on several tasks usually fails when one of them is lost. But an op
on a surviving task that waits for a value from the lost one may wait forever,
and its caller never learns of the loss.
"""

from collections.abc import Callable
import time

from absl import logging

from tfps._compat import cancellation
from tfps._utils import threads
from tfps._utils import timeouts


class StuckCallCanceller:
  """Cancels long calls of this process once a ps has changed.

  Args:
    calls: calls of this process.
    has_changed: returns whether a ps is lost or has been restarted.
    on_stuck: called before calls are cancelled; ends what a call waits for and
      cancelling does not end.
  """

  def __init__(
    self,
    calls: cancellation.Calls,
    has_changed: Callable[[], bool],
    on_stuck: Callable[[], object],
  ) -> None:
    self._calls = calls
    self._has_changed = has_changed
    self._on_stuck = on_stuck
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
    if not long_ones or not self._has_changed():
      return
    logging.warning(
      'A ps is lost: calls of threads %s do not end and are cancelled.',
      ', '.join(sorted({call.thread for call in long_ones})),
    )
    self._on_stuck()
    for call in long_ones:
      call.cancel()
