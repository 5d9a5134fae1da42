"""Recovery of a coordinator's variables after the loss of a ps."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import threading
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import quiesce_lock
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import config
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import coordinator_failures
from tfps.recovery import events
from tfps.recovery import repair_interface
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import saved_tables as saved_tables_lib
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.server import fencing
from tfps.server import ps_addresses
from tfps.server import task_monitor as task_monitor_lib
from tfps.updates import sessions
from tfps.variables import shared_variables

_Result = TypeVar('_Result')


class CoordinatorRecovery(repair_interface.Repairs):
  """Saves and restores the variables of a strategy with one client, the chief.

  Args:
    recovery: settings.
    shared: creates the variables.
    notes: consistency notes of the job.
    address_book: addresses of the ps.
    workers: addresses of the workers.
    device: CPU of this process.
    greet: registers this process with servers that have restarted, except for
      the given hosted ps.
    fence: fence of this process.

  Attributes:
    workers: workers in use, with their addresses.
    events: listener and counts of lost tasks.
    tell_rest: argument `tell` of `QuiesceLock.closed`.

  Raises:
    errors.CheckpointError: the directory cannot be used.
    ValueError: replicas are wanted and there is only one ps.
  """

  def __init__(
    self,
    recovery: config.Recovery,
    *,
    shared: shared_variables.SharedVariables,
    notes: consistency_note_lib.ConsistencyNotes,
    address_book: ps_addresses.PsAddressBook,
    workers: Mapping[spec_lib.Task, str],
    device: str,
    greet: Callable[[Collection[spec_lib.Task]], object],
    fence: fencing.Fence,
  ) -> None:
    num_ps = len(address_book.addresses)
    self.snapshotter = snapshotter_lib.Snapshotter(
      recovery, device=device, num_ps=num_ps, confirm=fence.check
    )
    self._fence = fence
    self._shared = shared
    self._notes = notes
    # Whether the ps do not have all live variables of this job.
    self._restores = not notes.match(address_book.incarnations())
    shared.attaches = not self._restores
    if shared.attaches:
      logging.warning('The live variables of this job are used.')
    self._replicas = replicas_lib.Replicas(recovery, num_ps, device=device)
    self._recovery = recovery
    self._address_book = address_book
    self.events = events.Events(recovery.on_event)
    self._greet = greet
    self._handler: coordinator_failures.FailureHandler | None = None
    self._monitor: task_monitor_lib.TaskMonitor | None = None
    self._can_fail_back: set[spec_lib.Task] = set()
    self._leaving: set[int] = set()  # indices of ps
    self._has_left = threading.Event()
    self._fail_back_period = threads.Periodic(
      'tfps-fail-back', timeouts.current().fail_back_every_secs, self._fail_back
    )
    self.workers = dict(workers)
    self.tell_rest: Callable[[bool], object] = lambda rest: None
    self._add_worker: Callable[[], object] | None = None

  def add(self, variable: Any) -> None:
    """Adds a new variable.

    It gets its value in the last snapshot, unless the ps have live variables of
    the job.

    Args:
      variable: a `tf.Variable` or a `ShardedVariable`.

    Raises:
      errors.CheckpointError: the snapshot has another variable of that name.
      ValueError: it is sharded and holds strings.
    """
    entry = self.snapshotter.inventory.add(variable, self.surviving)
    if entry is None:
      return
    is_attached = all(piece.variable.attached for piece in entry.pieces())
    if self._restores:
      self.snapshotter.begin(entry)
    elif not is_attached and self.snapshotter.has_begun_with(entry):
      logging.warning(
        '%s is not live: all variables are restored from the last snapshot.',
        entry.key,
      )
      self._restores, self._shared.attaches = True, False
      for each in self.snapshotter.inventory.entries():
        self.snapshotter.begin(each)
    self._replicas.add(entry, is_new=not is_attached)

  def start(
    self,
    handler: coordinator_failures.FailureHandler,
    monitor: task_monitor_lib.TaskMonitor,
    add_worker: Callable[[], object],
  ) -> None:
    """Starts to repair lost ps and to write snapshots.

    Args:
      handler: failure handler of the coordinator.
      monitor: monitor that the handler asks for incarnations.
      add_worker: lets the coordinator use one more worker.
    """
    self._monitor = monitor
    self._add_worker = add_worker
    handler.repair_with(self, timeout_secs=self._recovery.timeout_secs)
    self._handler = handler
    self.snapshotter.start(handler.gate)
    handler.tell_rest = self.tell_rest
    self._fail_back_period.start()
    self._replicas.start()

  @property
  def saved_tables(self) -> saved_tables_lib.SavedTables | None:
    """Tables of the snapshot with which variables begin; None if none do."""
    return self.snapshotter.saved_tables if self._restores else None

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """See `FailureHandler.surviving`."""
    return self._handler.surviving(function) if self._handler else function()

  def do_without(self, task: spec_lib.Task) -> None:
    """Prepares the end of a task.

    A worker ends its execution; another ps takes over the variables of a ps.

    Args:
      task: a worker or a ps.
    """
    handler = self._handler
    if handler is None:
      return
    if task.job == 'worker':
      handler.dismiss(task.index, timeouts.current().farewell_secs)
    else:
      self._has_left.clear()
      self._leaving = {task.index}
      deadline = deadlines.after(timeouts.current().farewell_secs)
      while not self._has_left.is_set() and not deadlines.is_over(deadline):
        handler.repair()  # again, as another repair may have been under way
        self._has_left.wait(timeouts.current().probe_every_secs)
      self._leaving = set()

  def admit(self, worker: spec_lib.Task, address: str) -> bool:
    """Admits a worker that is new or has another address.

    Args:
      worker: the worker.
      address: its address.

    Returns:
      Whether it is in use now.
    """
    handler, monitor = self._handler, self._monitor
    if handler is None or monitor is None or self._add_worker is None:
      return False
    monitor.move(worker, address)
    secs = timeouts.current().admission_secs
    if not handler.admit(worker.index, address, secs):
      logging.warning('%s at %s cannot be reached yet.', worker, address)
      return False
    if worker not in self.workers:
      self._add_worker()
    self.workers[worker] = address
    return True

  def keep(self) -> None:
    """Saves the variables, so that a later loss does not set them back.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.snapshotter.save_if_possible()
    self._replicas.refresh()

  def keep_writes(self) -> None:
    """Saves what was written outside of executions, as `keep` does."""
    self.snapshotter.note_writes()
    self.keep()

  def save_for_good(self) -> None:
    """Writes a last snapshot, after which nothing is executed."""
    handler, secs = self._handler, self._recovery.timeout_secs
    if handler is not None and quiesce_lock.quiesce_for_last_snapshot(
      handler.gate, secs, self.tell_rest
    ):
      self.snapshotter.save_at_last()

  def use_sync(self, session: sessions.Session) -> None:
    """Adapts snapshots and repairs to synchronous workers.

    Args:
      session: synchronizes the workers.
    """
    self.tell_rest = session.executions.try_to_rest
    self.snapshotter.on_restored(session.start)
    self.snapshotter.quiesce_with(
      session.paused
      if session.makes_one_update
      else lambda: self.snapshotter.alone(session.executions.try_to_rest)
    )

  def stop(self) -> None:
    """Stops snapshots and repairs; stopping twice is harmless."""
    self._handler = None
    self._fail_back_period.stop()
    self.snapshotter.stop()
    self._replicas.stop()

  # Called by the failure handler.

  def moved(self) -> Mapping[tuple[str, int], str]:
    return {
      (task.job, task.index): address
      for task, address in self._address_book.moved.items()
    }

  def describe(self, ps: int) -> str:
    return self._address_book.describe(ps)

  def check(self, found: Mapping[str, Collection[int]]) -> None:
    self._fence.check(found)

  def prepare(self) -> None:
    self.snapshotter.cover()
    self._replicas.cover()
    if self._restores:
      self._notes.write(self._address_book.incarnations())
      self._restores = False

  def relocate(self, ps: set[int], lost_secs: float) -> bool:
    before = self._address_book.addresses.copy()
    self._address_book.fail_over_if_due(
      ps, lost_secs, self._recovery.waits_for_restart_secs
    )
    self._follow_moves()
    return self._address_book.addresses != before

  def begin(self) -> None:
    can_fail_back, self._can_fail_back = self._can_fail_back, set()
    leaving = set() if self._has_left.is_set() else self._leaving
    if not can_fail_back and not leaving:
      return
    try:
      self.snapshotter.save_quiesced()
      self._replicas.refresh()
    except (tf.errors.OpError, errors.CheckpointError) as error:
      logging.warning(
        'No ps is moved, as the variables could not be saved: %s', error
      )
      return
    self._address_book.fail_back(can_fail_back)
    has_left = not self._recovery.moves_ps or self._address_book.leave(leaving)
    self._follow_moves()
    if leaving and has_left:
      self._has_left.set()

  def notify(self, kind: str, workers: set[int]) -> None:
    self.events.tell(kind, [f'worker:{i}' for i in sorted(workers)])

  def rebuild(self, ps: set[int]) -> None:
    self._greet(self._address_book.hosted)
    self._fence.take({'ps': ps})
    inventory = self.snapshotter.inventory
    incarnations = self._address_book.incarnations()
    self._replicas.renew(inventory.on(ps), ps)
    self._shared.rejoin()
    secs = None
    # Otherwise only a connection was lost.
    if not self._notes.match(incarnations) or inventory.emptied():
      secs = self.snapshotter.restore(ps, self._replicas)
      self._shared.announce(inventory.on(set(incarnations)))
      self._notes.write(incarnations)
    self.events.tell('back', [f'ps:{i}' for i in sorted(ps)], secs)

  def _follow_moves(self) -> None:
    """Reports moved ps and monitors all at their current addresses."""
    assert self._monitor is not None
    for task in self._address_book.pop_moves():
      self.events.tell('moved', [str(task)])
    for task, address in self._address_book.addresses.items():
      self._monitor.move(task, address)

  def _fail_back(self) -> None:
    """Requests the return of taken-over ps that are back at their address."""
    handler = self._handler
    self._can_fail_back = self._address_book.ready_to_fail_back()
    if self._can_fail_back and handler is not None:
      handler.repair()
