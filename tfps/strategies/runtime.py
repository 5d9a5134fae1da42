"""State and reports that all strategies share."""

from typing import Any

from tfps._compat import ended_servers
from tfps.recovery import client_recovery
from tfps.recovery import coordinator_recovery
from tfps.recovery import events as events_lib
from tfps.recovery import preemption
from tfps.server import connection
from tfps.server import control_messages
from tfps.server import job_facts
from tfps.updates import reports
from tfps.updates import sessions
from tfps.updates import staleness as staleness_lib
from tfps.variables import placement_ledger
from tfps.wire import traffic
from tfps.wire import transfers as transfers_lib

Guard = (
  client_recovery.ClientRecovery | coordinator_recovery.CoordinatorRecovery
)


class Runtime:
  """Base class of strategies with their reports, and the end of recovery.

  Strategies set the attributes in their constructors.

  Attributes:
    transfers: transfers values between ps and workers.
    staleness: measures the staleness of gradients; None if they are never
      stale.
    sync_session: logs the steps of workers, or synchronizes them.
    guard: recovers from lost tasks; None without a `Recovery`.
  """

  extended: Any
  transfers: transfers_lib.Transfers
  staleness: staleness_lib.Staleness | None
  sync_session: sessions.Session
  guard: Guard | None

  _requests: control_messages.Listener
  _preemption: preemption.Preemption
  _facts: job_facts.JobFacts | None = None  # for the web page
  _unusable = ''  # why no steps can be executed any more

  def placement_report(self) -> placement_ledger.PlacementReport:
    """Returns the variables and bytes on each ps, and the replicas' bytes."""
    report: placement_ledger.PlacementReport = self.extended.ledger.report()
    return report

  def wire_report(self) -> traffic.WireReport:
    """Returns the bytes pulled from each ps and pushed to it.

    A worker that runs the program counts its own bytes, a chief with a
    coordinator those of all workers.
    """
    return self.transfers.report()

  def updates_report(self) -> reports.UpdatesReport:
    """Returns counts of gradients by their outcome, and their staleness.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return reports.report(self.sync_session, self.staleness)

  def recovery_report(self) -> events_lib.RecoveryReport:
    """Returns this process' record of lost tasks and repeated steps.

    Without a `Recovery`, it is empty.
    """
    if self.guard is None:
      return events_lib.RecoveryReport()
    return self.guard.events.report

  @property
  def is_closed(self) -> bool:
    """True if steps cannot be executed any more; see `check_usable`."""
    return bool(self._unusable)

  def check_usable(self) -> None:
    """Checks that steps can still be executed under this strategy.

    Steps of a closed strategy may wait forever for tasks that have ended, and
    those of one whose connection was replaced may crash the process.

    Raises:
      RuntimeError: it is closed, or another strategy was made since.
    """
    if self._unusable:
      raise RuntimeError(f'{type(self).__name__}: {self._unusable}')

  def _note_connected(self) -> None:
    ended_servers.note_connected()
    connection.stop_before_next(self._be_replaced)

  def _be_replaced(self) -> None:
    ended_servers.note_replaced(self)
    self._unusable = (
      'this process has made another strategy since, and uses one at a time. '
      'Make models and coordinators anew under the latest one.'
    )

  def _be_closed(self) -> None:
    ended_servers.note_closed(type(self).__name__)
    self._unusable = (
      'it is closed, so that its ps and workers may have ended. Close it, or '
      'its coordinator, when all models have been used and saved.'
    )

  def _listen(self, requests: control_messages.Listener) -> None:
    """Handles requests until the strategy is closed or replaced."""
    self._requests = requests
    connection.stop_before_next(self._stop_background)

  def _stop_background(self) -> None:
    self._requests.stop()
    if self._facts is not None:
      self._facts.stop()
    if self.guard is not None:
      self._preemption.stop()
      self.guard.stop()
