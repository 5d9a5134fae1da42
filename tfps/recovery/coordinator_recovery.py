"""Has a coordinator's training go on after the loss of a ps."""

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
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.server import fencing
from tfps.server import ps_addresses
from tfps.server import task_monitor as task_monitor_lib
from tfps.variables import shared_variables

_Result = TypeVar('_Result')


class CoordinatorRecovery(repair_interface.Repairs):
  """Keeps the variables of one strategy, whose only client is this process.

  Args:
    recovery: how.
    shared: makes them.
    notes: of the job.
    address_book: of the ps.
    workers: where they are.
    device: of this process.
    greet: tells the servers of this process, but for those that are guests;
      called when some have restarted.
    fence: of this process.

  Attributes:
    workers: those that train, with their addresses.
    events: of lost tasks.
    tell_rest: as for `Gate.closed`, of what workers execute.

  Raises:
    errors.CheckpointError: the directory cannot be used.
    ValueError: there is one ps only, and it is to have a replica.
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
    # Whether what is on the ps is not, or not all, of this very job.
    self._begins_anew = not notes.are(address_book.incarnations())
    shared.attaches = not self._begins_anew
    if shared.attaches:
      logging.warning('The variables of this job are live, and are used.')
    self._replicas = replicas_lib.Replicas(recovery, num_ps)
    self._recovery = recovery
    self._address_book = address_book
    self.events = events.Events(recovery.on_event)
    self._greet = greet
    self._handler: coordinator_failures.FailureHandler | None = None
    self._monitor: task_monitor_lib.TaskMonitor | None = None
    self._can_go_home: set[spec_lib.Task] = set()
    self._are_to_leave: set[int] = set()  # ps
    self._have_left = threading.Event()
    self._sends_home = threads.Periodic(
      'tfps-send-home', timeouts.current().fail_back_every_secs, self._send_home
    )
    self.workers = dict(workers)
    self.tell_rest: Callable[[bool], object] = lambda rest: None
    self._add_worker: Callable[[], object] | None = None

  def add(self, variable: Any) -> None:
    """Takes note of a new variable.

    It gets its value of the last cut, unless all ps are those that the job has
    trained on, and have the variables of the cut.

    Raises:
      errors.CheckpointError: the cut has another variable of that name.
      ValueError: it holds strings in shards.
    """
    entry = self.snapshotter.inventory.add(variable, self.surviving)
    if entry is None:
      return
    is_attached = all(piece.variable.attached for piece in entry.pieces())
    if self._begins_anew:
      self.snapshotter.begin(entry)
    elif not is_attached and self.snapshotter.has_begun_with(entry):
      logging.warning('%s is not live. All begins with the cut.', entry.key)
      self._begins_anew, self._shared.attaches = True, False
      for each in self.snapshotter.inventory.entries():
        self.snapshotter.begin(each)
    self._replicas.add(entry, is_new=not is_attached)

  def start(
    self,
    handler: coordinator_failures.FailureHandler,
    monitor: task_monitor_lib.TaskMonitor,
    add_worker: Callable[[], object],
  ) -> None:
    """Repairs what the handler finds lost, and makes cuts from now on.

    Args:
      handler: of the coordinator.
      monitor: what the handler finds it by.
      add_worker: has the coordinator use one more worker.
    """
    self._monitor = monitor
    self._add_worker = add_worker
    handler.repair_with(self, timeout_secs=self._recovery.timeout_secs)
    self._handler = handler
    self.snapshotter.start(handler.gate)
    handler.tell_rest = self.tell_rest
    self._sends_home.start()
    self._replicas.start()

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result; it is called again after the loss of a ps."""
    return self._handler.surviving(function) if self._handler else function()

  def do_without(self, task: spec_lib.Task) -> None:
    """Lets a task end: a worker does what it is at, a ps hands over."""
    handler = self._handler
    if handler is None:
      return
    if task.job == 'worker':
      handler.dismiss(task.index, timeouts.current().farewell_secs)
    else:
      self._have_left.clear()
      self._are_to_leave = {task.index}
      deadline = deadlines.after(timeouts.current().farewell_secs)
      while not self._have_left.is_set() and not deadlines.is_over(deadline):
        handler.repair()  # again, if it was at another repair
        self._have_left.wait(timeouts.current().probe_every_secs)
      self._are_to_leave = set()

  def take_in(self, worker: spec_lib.Task, address: str) -> bool:
    """Trains with a worker that the cluster did not have, or had elsewhere.

    Returns:
      Whether it does now.
    """
    handler, monitor = self._handler, self._monitor
    if handler is None or monitor is None or self._add_worker is None:
      return False
    monitor.move(worker, address)
    secs = timeouts.current().admission_secs
    if not handler.take_in(worker.index, address, secs):
      logging.warning('%s at %s is not reached yet.', worker, address)
      return False
    if worker not in self.workers:
      self._add_worker()
    self.workers[worker] = address
    return True

  def keep(self) -> None:
    """Has a loss from now on take nothing away of what is trained so far.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.snapshotter.save_if_possible()
    self._replicas.refresh()

  def save_for_good(self) -> None:
    """Makes a last cut, after which nothing is executed any more."""
    handler, secs = self._handler, self._recovery.timeout_secs
    if handler is not None and quiesce_lock.quiesce_for_last_snapshot(
      handler.gate, secs, self.tell_rest
    ):
      self.snapshotter.save_at_last()

  def stop(self) -> None:
    """Makes no more cuts, and repairs nothing; twice is harmless."""
    self._handler = None
    self._sends_home.stop()
    self.snapshotter.stop()
    self._replicas.stop()

  # What the coordinator's workers call.

  def moved(self) -> Mapping[tuple[str, int], str]:
    return {
      (task.job, task.index): address
      for task, address in self._address_book.moved.items()
    }

  def check(self, found: Mapping[str, Collection[int]]) -> None:
    self._fence.check(found)

  def prepare(self) -> None:
    self.snapshotter.cover()
    self._replicas.cover()
    if self._begins_anew:
      self._notes.leave(self._address_book.incarnations())
      self._begins_anew = False

  def replace(self, ps: set[int], lost_secs: float) -> bool:
    before = self._address_book.addresses.copy()
    self._address_book.replace(
      ps, lost_secs, self._recovery.waits_for_restart_secs
    )
    self._look_elsewhere()
    return self._address_book.addresses != before

  def begin(self) -> None:
    can_go_home, self._can_go_home = self._can_go_home, set()
    are_to_leave = set() if self._have_left.is_set() else self._are_to_leave
    if not can_go_home and not are_to_leave:
      return
    try:
      self.snapshotter.save_quiesced()
      self._replicas.refresh()
    except (tf.errors.OpError, errors.CheckpointError) as error:
      logging.warning('Nobody moves: %s', error)
      return
    self._address_book.send_home(can_go_home)
    if are_to_leave and self._recovery.moves_ps:
      self._address_book.take_over(are_to_leave)
    self._look_elsewhere()
    if are_to_leave:
      self._have_left.set()

  def notice(self, kind: str, workers: set[int]) -> None:
    self.events.tell(kind, [f'worker:{i}' for i in sorted(workers)])

  def rebuild(self, ps: set[int]) -> None:
    self._greet(self._address_book.moved)
    self._fence.take({'ps': ps})
    inventory = self.snapshotter.inventory
    incarnations = self._address_book.incarnations()
    self._replicas.renew(inventory.on(ps), ps)
    self._shared.rejoin()
    secs = None
    # Otherwise a connection was lost, and no ps.
    if not self._notes.are(incarnations) or inventory.emptied():
      secs = self.snapshotter.put_back(ps, self._replicas)
      self._shared.announce(inventory.on(set(incarnations)))
      self._notes.leave(incarnations)
    self.events.tell('back', [f'ps:{i}' for i in sorted(ps)], secs)

  def _look_elsewhere(self) -> None:
    assert self._monitor is not None
    for task in self._address_book.forget_moves():
      self.events.tell('moved', [str(task)])
    for task, address in self._address_book.addresses.items():
      self._monitor.move(task, address)

  def _send_home(self) -> None:
    """Has guests go home if they can."""
    handler = self._handler
    self._can_go_home = self._address_book.back_home()
    if self._can_go_home and handler is not None:
      handler.repair()
