"""State, setup and reports that all strategies with ps share."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from tfps._compat import ended_servers
from tfps.cluster import spec as spec_lib
from tfps.recovery import client_recovery
from tfps.recovery import config as recovery_config
from tfps.recovery import consistency_note
from tfps.recovery import coordinator_recovery
from tfps.recovery import copies as copies_lib
from tfps.recovery import events as events_lib
from tfps.recovery import preemption
from tfps.server import connection
from tfps.server import control_messages
from tfps.server import fencing
from tfps.server import job_facts
from tfps.server import ps_addresses
from tfps.server import registration as registration_lib
from tfps.strategies import dashboard
from tfps.strategies import metrics
from tfps.strategies import session_setup
from tfps.updates import policies
from tfps.updates import reports
from tfps.updates import sessions
from tfps.updates import staleness as staleness_lib
from tfps.updates.sync import session as session_lib
from tfps.variables import placement as placement_lib
from tfps.variables import placement_ledger
from tfps.variables import shared_variables
from tfps.wire import config as wire_config
from tfps.wire import traffic
from tfps.wire import transfers as transfers_lib

Guard = (
  client_recovery.ClientRecovery | coordinator_recovery.CoordinatorRecovery
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """Arguments that strategies with ps have in common.

  Attributes:
    variable_partitioner: see `ParameterServerStrategy`, as for all others.
    placement: assigns variables to ps.
    wire: how values are transferred.
    updates: when gradients become updates.
    recovery: how training survives the loss of tasks.
    connect_timeout_secs: how long to wait for other tasks.
  """

  variable_partitioner: Callable[..., Sequence[int]] | None
  placement: placement_lib.Placement | None
  wire: wire_config.Wire | None
  updates: policies.Policy
  recovery: recovery_config.Recovery | None
  connect_timeout_secs: float


class Runtime:
  """Base class of strategies with ps: what they are made of, and reports.

  A constructor connects to the cluster, then calls `_begin_variables` and
  `_begin_updates`.

  Attributes:
    task: the task of this process.
    is_chief: whether this process saves and restores the variables.
    transfers: transfers values between ps and workers.
    staleness: measures the staleness of gradients; None if they are never
      stale.
    sync_session: logs the steps of workers, or synchronizes them.
    guard: recovers from lost tasks; None without a `Recovery`.
    events: counts losses, repairs and repeated steps.
  """

  task: spec_lib.Task
  is_chief: bool
  extended: Any
  transfers: transfers_lib.Transfers
  staleness: staleness_lib.Staleness | None
  sync_session: sessions.Session
  guard: Guard | None
  events: events_lib.Events

  wait_for_chief: Callable[[str, float | None], None]

  # Whether each worker runs the program, and finds variables by their names.
  _runs_in_each_worker = False
  # Whether a step is one graph of all workers.
  _steps_span_workers = False
  _session_class: type[session_lib.SyncSession] = session_lib.SyncSession

  _address_book: ps_addresses.PsAddressBook
  _registration: registration_lib.Registration
  _fence: fencing.Fence
  _job = ''  # container of what the ps keep for this job
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
    """Returns this process' record of lost tasks and repeated steps."""
    return self.events.report

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

  def _begin_variables(
    self, settings: Settings, cluster: spec_lib.Cluster
  ) -> None:
    """Prepares where variables are, how they cross and how they are restored.

    Args:
      settings: the strategy's.
      cluster: has the ps.

    Raises:
      errors.CheckpointError: the directory of the recovery cannot be used.
      ValueError: the recovery wants replicas, and there is only one ps.
    """
    extended, recovery = self.extended, settings.recovery
    extended.ledger = placement_ledger.PlacementLedger(
      placement_lib.within(
        settings.placement or placement_lib.ByteBalanced(), cluster
      ),
      cluster.num_ps,
      replicas=recovery.replicas if recovery else 0,
    )
    self.transfers = transfers_lib.Transfers(
      settings.wire or wire_config.Wire(),
      cluster.num_ps,
      policy=settings.updates,
      is_local=self._runs_in_each_worker,
    )
    self.guard, self.events = None, events_lib.Events(None)
    if recovery is not None or self._runs_in_each_worker:
      extended.shared = shared_variables.SharedVariables(
        is_chief=self.is_chief,
        timeout_secs=settings.connect_timeout_secs,
        chief=str(registration_lib.chief_of(cluster)),
        container=self._job,
      )
    if recovery is not None:
      device = f'/job:{self.task.job}/task:{self.task.index}/device:CPU:0'
      self.guard = self._make_guard(
        copies_lib.Copies(
          recovery,
          address_book=self._address_book,
          notes=self._make_notes(cluster, device),
          shared=extended.shared,
          fence=self._fence,
          device=device,
          saves=self.is_chief,
          is_shared=self._runs_in_each_worker or self._steps_span_workers,
        )
      )
      self.events = self.guard.events
      extended.notice = self.guard.add
      self._preemption = preemption.Preemption(self._leave)

  def _make_notes(
    self, cluster: spec_lib.Cluster, device: str
  ) -> consistency_note.ConsistencyNotes:
    """Returns notes of which ps fit together, shared with other processes."""
    chief = registration_lib.chief_of(cluster)
    if not self._runs_in_each_worker or chief not in cluster.tasks():
      return consistency_note.ConsistencyNotes(self._job)
    if self.is_chief:
      return consistency_note.ConsistencyNotes(self._job, device=device)
    return consistency_note.ConsistencyNotes(
      self._job, chief=(chief, cluster.address(chief))
    )

  def _begin_updates(
    self, settings: Settings, workers: session_setup.Workers
  ) -> None:
    """Prepares what steps have to do with each other, and shows them.

    Args:
      settings: the strategy's.
      workers: those that do steps.

    Raises:
      errors.DeadlineError: the chief has not started in time.
    """
    policy, make_own = settings.updates, self.extended.make_own
    num_ps = len(self._address_book.addresses)
    self.staleness = None
    if not (policy.makes_one_update or self._steps_span_workers):
      self.staleness = staleness_lib.Staleness(
        make_own, num_ps, divides_rate=policy.divide_rate
      )
    self.sync_session = session_setup.session_of(
      workers,
      policy,
      session_class=self._session_class,
      make_own=make_own,
      num_ps=num_ps,
      own=self.task,
      tell=self.events.tell_repeated if self.guard else None,
    )
    if self.is_chief:
      self._start_session()
    if self.sync_session.waits and self._runs_in_each_worker:
      self.wait_for_chief('sync_session', settings.connect_timeout_secs)
    metrics.offer(self, self.task, is_chief=self.is_chief)
    self._listen(self._listener())
    if self.is_chief:
      self._facts = dashboard.begin(
        self,
        self.task,
        self._all_addresses,
        self._address_book,
        **vars(settings),
      )

  def _make_guard(self, copies: copies_lib.Copies) -> Guard:
    """Starts the recovery of the variables."""
    return client_recovery.ClientRecovery(
      copies, greet=self._registration.start
    )

  def _start_session(self) -> None:
    """Starts the session of all workers, as the chief."""
    self.sync_session.start()
    if self.guard is not None:
      self.guard.use_sync(self.sync_session)

  def _listener(self) -> control_messages.Listener:
    """Returns what handles the requests of other tasks."""
    return control_messages.Listener(
      self.task, self.guard.do_without if self.guard else None
    )

  def _leave(self) -> None:
    """Saves the variables, after SIGTERM."""
    assert self.guard is not None
    self.guard.save_for_good()

  def _all_addresses(self) -> Mapping[spec_lib.Task, str]:
    """Returns the current addresses of all tasks that can be asked."""
    raise NotImplementedError

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
