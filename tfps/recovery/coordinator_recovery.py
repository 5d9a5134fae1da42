"""Recovery of a coordinator's variables after the loss of a ps."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import TypeVar

from absl import logging

from tfps._utils import quiesce_lock
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import coordinator_failures
from tfps.recovery import coordinator_repair
from tfps.recovery import copies as copies_lib
from tfps.recovery import events
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.server import task_monitor as task_monitor_lib
from tfps.updates import sessions

_Result = TypeVar('_Result')


class CoordinatorRecovery:
  """Saves and restores the variables of a strategy with one client, the chief.

  Args:
    copies: of the variables.
    greet: registers this process with servers that have restarted, except for
      the given hosted ps.
    workers: addresses of the workers.

  Attributes:
    copies: as given.
    workers: workers in use, with their addresses.
    events: listener and counts of lost tasks.
    repair: what is done about lost ps.
    tell_rest: argument `tell` of `QuiesceLock.closed`.
  """

  def __init__(
    self,
    copies: copies_lib.Copies,
    *,
    greet: Callable[[Collection[spec_lib.Task]], object],
    workers: Mapping[spec_lib.Task, str],
  ) -> None:
    self.copies = copies
    copies.restores = not copies.notes.match(copies.address_book.incarnations())
    copies.shared.attaches = not copies.restores
    if copies.shared.attaches:
      logging.warning('The live variables of this job are used.')
    self.events = events.Events(copies.recovery.on_event)
    self.repair = coordinator_repair.CoordinatorRepair(
      copies, self.events, greet
    )
    self._handler: coordinator_failures.FailureHandler | None = None
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
    copies = self.copies
    entry = copies.inventory.add(variable, self.surviving)
    if entry is None:
      return
    is_attached = all(piece.variable.attached for piece in entry.pieces())
    if copies.restores:
      self.snapshotter.begin(entry)
    elif not is_attached and self.snapshotter.has_begun_with(entry):
      logging.warning(
        '%s is not live: all variables are restored from the last snapshot.',
        entry.key,
      )
      copies.restores, copies.shared.attaches = True, False
      for each in copies.inventory.entries():
        self.snapshotter.begin(each)
    copies.replicas.add(entry, is_new=not is_attached)

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
    self.repair.monitor = monitor
    self._add_worker = add_worker
    secs = self.copies.recovery.timeout_secs
    handler.repair_with(self.repair, timeout_secs=secs)
    self._handler = handler
    self.snapshotter.start(handler.gate)
    handler.tell_rest = self.tell_rest
    self._fail_back_period.start()
    self.copies.replicas.start()

  @property
  def snapshotter(self) -> snapshotter_lib.Snapshotter:
    """Saves the variables."""
    assert self.copies.snapshotter is not None
    return self.copies.snapshotter

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
      self.repair.wait_until_left(task.index, handler.repair)

  def admit(self, worker: spec_lib.Task, address: str) -> bool:
    """Admits a worker that is new or has another address.

    Args:
      worker: the worker.
      address: its address.

    Returns:
      Whether it is in use now.
    """
    handler = self._handler
    if handler is None or self._add_worker is None:
      return False
    self.repair.monitor.move(worker, address)
    secs = timeouts.current().admission_secs
    if not handler.admit(worker.index, address, secs):
      logging.warning('%s at %s cannot be reached yet.', worker, address)
      return False
    if worker not in self.workers:
      self._add_worker()
    self.workers[worker] = address
    return True

  def keep_writes(self) -> None:
    """Saves what was written outside of executions, against a later loss.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.snapshotter.note_writes()
    self.copies.keep()

  def save_for_good(self) -> None:
    """Writes a last snapshot, after which nothing is executed."""
    handler, secs = self._handler, self.copies.recovery.timeout_secs
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
    self.copies.replicas.stop()

  def _fail_back(self) -> None:
    """Requests the return of taken-over ps that are back at their address."""
    handler = self._handler
    if self.repair.can_fail_back() and handler is not None:
      handler.repair()
