"""What a coordinator's workers do when a task is lost.

TensorFlow's handler waits until every lost worker is back, blocked in a call
that needs all of them, and ends training when a ps is lost. Ours leaves the
tasks that do not answer out of the cluster, takes each back once it answers,
and can have a ps that has restarted filled anew while executions wait.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import math
import threading
import time
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import cancellation
from tfps._compat import preemption_handler
from tfps._compat import server_def as server_def_lib
from tfps._compat import stale_cache
from tfps._utils import quiesce_lock
from tfps._utils import timeouts
from tfps.recovery import dismissals
from tfps.recovery import ps_repair
from tfps.recovery import repair_interface
from tfps.recovery import worker_states

Incarnations = ps_repair.Incarnations
_Call = Callable[[], object]
_Result = TypeVar('_Result')


class FailureHandler(preemption_handler.PreemptionHandler):
  """Takes lost tasks out of the cluster and back into it.

  Args:
    server_def: as TensorFlow's.
    cluster: as TensorFlow's.
    incarnations: by job and index, each task's incarnation, which is another
      one after a restart, or None while it does not answer; must return within
      seconds.

  Attributes:
    gate: within which something is executed.
    tell_rest: as for `Gate.closed`.
  """

  def __init__(
    self,
    server_def: Any,
    cluster: Any,
    incarnations: Callable[[], Incarnations],
  ) -> None:
    self.gate = quiesce_lock.QuiesceLock()
    self.tell_rest: Callable[[bool], object] = lambda rest: None
    self._calls = cancellation.Calls()
    self._incarnations = incarnations
    self._stopping = threading.Event()
    self._replaced: errors.ReplacedError | None = None
    self._worker_states = worker_states.WorkerStates()
    self._dismissals = dismissals.Dismissals(
      lambda worker: self._incarnations().get(('worker', worker))
    )
    super().__init__(server_def, cluster)
    self._ps = ps_repair.PsRepairs(
      self.gate,
      incarnations,
      condition=self.condition,
      ask=self.due.set,
      update=self._update,
      stopping=self._stopping,
      replaced=lambda: self._replaced,
      cancel=self._calls.cancel_those_under_way,
    )

  @property
  def num_repairs(self) -> int:
    """How often lost ps have been repaired."""
    return self._ps.num_repairs

  def repair_with(
    self, repairs: repair_interface.Repairs, *, timeout_secs: float
  ) -> None:
    """Has a lost ps repaired, where its loss was an error.

    Args:
      repairs: does it.
      timeout_secs: how long to wait for a ps that does not come back.
    """
    found = self._incarnations()
    self._worker_states.incarnations = ps_repair.of('worker', found)
    self._ps.begin(repairs, ps_repair.of('ps', found), timeout_secs)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result; it is called again after the loss of a ps."""
    if threading.current_thread() is self.thread:  # which repairs
      return function()
    while True:
      num_repairs = self.num_repairs
      try:
        return function()
      except tf.errors.OpError as error:
        if not self._ps.mends(error, num_repairs):
          self._explain(error)
          raise

  def repair(self) -> None:
    """Asks for a repair, although nothing has failed."""
    with self.condition:
      self._ps.note_loss()

  def dismiss(self, worker: int, timeout_secs: float) -> None:
    """Gives a worker nothing more to do, until it has restarted.

    Returns once it has done what it does now, or time is over.
    """
    self._dismissals.add(worker, self._worker_states.incarnations.get(worker))
    deadline = time.monotonic() + timeout_secs
    executing = self._cluster.workers[worker]
    while executing.busy_since is not None and time.monotonic() < deadline:
      self._stopping.wait(timeouts.current().poll_secs)

  def take_in(self, worker: int, address: str, timeout_secs: float) -> bool:
    """Has a worker in the cluster that was not, or was elsewhere.

    Args:
      worker: its index.
      address: where it answers.
      timeout_secs: how long to wait for the cluster to be told.

    Returns:
      Whether it is in the cluster now. If not, it will be.
    """
    with self.condition:
      server_def_lib.place(self._server_def, 'worker', worker, address)
      self._worker_states.leave_out(worker)
      self.due.set()
      return self.condition.wait_for(
        lambda: not self._worker_states.is_left_out(worker), timeout_secs
      )

  def _executing(self) -> list[str]:
    """The workers that are at something."""
    return [
      f'worker:{worker.worker_index}'
      for worker in self._cluster.workers
      if worker.busy_since is not None
    ]

  def is_dismissed(self, worker: int) -> bool:
    """Whether a worker is to end, and has not restarted."""
    return worker in self._dismissals

  def absent(self) -> set[int]:
    """The workers that do nothing now: they are lost, or are to end."""
    absent = set(self._worker_states.away())
    number = len(self._cluster.workers)
    return absent | {i for i in range(number) if self.is_dismissed(i)}

  def wait_for_return(self, worker: int, recover: _Call) -> None:
    """Waits until a worker that is to end has restarted, and recovers it."""
    logging.warning('worker:%d leaves.', worker)
    self._note_lost(worker)
    try:
      self._wait_until_back(worker)
    except errors.ReplacedError:  # of which this thread's next closure tells
      return
    with self.wait_on_failure(
      on_recovery_fn=recover,
      on_transient_failure_fn=recover,
      worker_device_name=f'/task:{worker}',
    ):
      recover()

  def stop(self) -> None:
    self._stopping.set()
    super().stop()

  @contextlib.contextmanager
  def wait_on_failure(
    self,
    on_failure_fn: Callable[[Exception], object] | None = None,
    on_transient_failure_fn: _Call | None = None,
    on_recovery_fn: _Call | None = None,
    worker_device_name: str = '(unknown)',
  ) -> Iterator[None]:
    self._ps.prepare()
    index = worker_device_name.rpartition(':')[2]
    try:
      with self.gate.entered(f'worker:{index}'), self._calls.one():
        num_repairs = self.num_repairs
        yield
      return
    except preemption_handler.FAILURES as error:
      failure = error
    worker = int(index)
    if not self._worker_states.is_bare(worker):
      if self._goes_on(worker, failure, num_repairs):
        if on_transient_failure_fn:
          on_transient_failure_fn()
        return
      if not preemption_handler.is_loss_of_worker(failure):
        self._explain(failure)
      self.check_is_lost_worker(failure)
      self._note_lost(worker)
      self._tell('lost', {worker})
    logging.warning('worker:%d is lost: %s', worker, failure)
    if on_failure_fn:
      on_failure_fn(failure)
    self._wait_until_back(worker)
    if on_recovery_fn:
      with self.wait_on_failure(
        on_recovery_fn=on_recovery_fn,
        on_transient_failure_fn=on_transient_failure_fn,
        worker_device_name=worker_device_name,
      ):
        on_recovery_fn()

  def _explain(self, failure: Exception) -> None:
    """Raises an error that says more than a failure which is about to end all.

    Where another process has taken this one's place, what this one had there is
    gone, and operations fail in many ways.
    """
    if self._ps.repairs is not None and isinstance(failure, tf.errors.OpError):
      workers = range(len(self._cluster.workers))
      try:
        self._ps.repairs.check({'ps': self._ps.known, 'worker': workers})
      except errors.ReplacedError as error:
        raise error from failure

  def _goes_on(self, worker: int, failure: Exception, num_repairs: int) -> bool:
    """Whether the worker can just try again, with all mended that has to be."""
    if not self._ps.mends(failure, num_repairs):
      return self._is_passing(failure)
    self._cluster.workers[worker].begin_datasets_again()
    return True

  def _is_passing(self, failure: Exception) -> bool:
    """Whether TensorFlow would just try again."""
    if self._ps.repairs is None and (self.is_transient_loss_of_ps(failure)):
      return True
    if self.is_transient_timeout(failure):
      return True
    return isinstance(failure, tf.errors.CancelledError) and '/job:' in str(
      failure
    )

  def _note_lost(self, worker: int) -> None:
    with self.condition:
      self._worker_states.wait_for(worker)
      self.due.set()

  def _wait_until_back(self, worker: int) -> None:
    """Waits for a worker; what it held is to be made anew after this."""
    with self.condition:
      self.condition.wait_for(
        lambda: worker not in self._worker_states.away() or self._is_over()
      )
      if self._replaced is not None:
        raise self._replaced
      self._worker_states.note_filled(worker)

  def _is_over(self) -> bool:
    """Whether nothing is mended any more."""
    return self._stopping.is_set() or self._replaced is not None

  def run(self) -> None:
    while not self._is_over():
      if not self.due.wait(timeouts.current().stuck_every_secs):
        self._find_changes()
        continue
      if self._stopping.is_set() or self._has_mended():
        continue
      self._pause()

  def _find_changes(self) -> None:
    """Has ps repaired that are lost without an execution's failing."""
    since = min(
      (worker.busy_since or math.inf for worker in self._cluster.workers),
      default=math.inf,
    )
    secs = time.monotonic() - since
    if secs > timeouts.current().stuck_every_secs and self._ps.have_changed():
      self.repair()

  def _pause(self) -> bool:
    """Waits for a while; whether it is over meanwhile.

    Short at first: a ps may be taken over, or back, at once.
    """
    secs = timeouts.current().repair_poll_secs
    return self._stopping.wait(
      self._ps.retry_secs() if self._ps.is_lost else secs
    )

  def _has_mended(self) -> bool:
    """Does what can be done now; whether it was anything."""
    try:
      return self._repair() if self._ps.is_lost else self._take_back()
    except errors.ReplacedError as error:
      with self.condition:
        self._replaced = error
        self.condition.notify_all()
      return True
    except (tf.errors.OpError, errors.DeadlineError) as error:
      logging.warning('A lost task could not be taken back: %s', error)
      return False

  def _take_back(self) -> bool:
    """Takes in the lost workers that answer."""
    found = self._incarnations()
    back = {
      worker
      for worker in self._worker_states.away()
      if found.get(('worker', worker)) is not None
      and worker not in self._dismissals
    }
    if not back or None in ps_repair.of('ps', found).values():
      return False
    self._update(found)
    logging.warning(
      'Back, or new: %s.', ', '.join(f'worker:{i}' for i in sorted(back))
    )
    joined = {i for i in back if i >= len(self._cluster.workers)}
    self._tell('joined', joined)
    self._tell('back', back - joined)
    with self.condition:
      self._worker_states.take_back(back)
      for worker in back:
        self._dismissals.discard(worker)
      self._settle()
    return True

  def _repair(self) -> bool:
    """Repairs the ps; whether it could."""
    if not self._ps.repair(self.tell_rest):
      return False
    with self.condition:
      self._ps.is_lost = False
      self._settle()
    return True

  def _update(self, found: Incarnations) -> None:
    """Tells the runtime who is in the cluster: those that answer."""
    workers = ps_repair.of('worker', found)
    with self.condition:
      silent, unnoticed = self._worker_states.note(workers)
    self._tell('lost', unnoticed)
    self._tell('back', unnoticed - silent)
    moved: Mapping[tuple[str, int], str] = {}
    if self._ps.repairs is not None:
      answering = set(workers) - silent
      self._ps.repairs.check({'ps': self._ps.known, 'worker': answering})
      moved = self._ps.repairs.moved()
    without = {('worker', i) for i in silent}
    if self._ps.is_lost:
      server_def_lib.update(self._server_def, without=without, moved=moved)
    else:
      self._tell_of_workers(without, moved)
    self._worker_states.note_told(silent)

  def _tell_of_workers(
    self,
    without: Collection[tuple[str, int]],
    moved: Mapping[tuple[str, int], str],
  ) -> None:
    """Tells the runtime which workers are there, whoever is at something.

    That may take long, or wait for just the worker that is back. Functions
    that workers are to execute are made on workers.
    """
    try:
      server_def_lib.update(
        self._server_def,
        without=without,
        moved=moved,
        forget_secs=timeouts.current().forget_worker_secs,
      )
    except stale_cache.StillExecutingError as error:
      names = ', '.join(self._executing()) or 'This process'
      logging.warning('%s is at something: %s', names, error)

  def _tell(self, kind: str, workers: set[int]) -> None:
    if self._ps.repairs is not None and workers:
      self._ps.repairs.notice(kind, workers)

  def _settle(self) -> None:
    """Wakes who waits; sleeps if nobody is lost any more."""
    is_due = self._ps.is_lost or self._worker_states.away()
    if not is_due and not self._stopping.is_set():
      self.due.clear()
    self.condition.notify_all()
