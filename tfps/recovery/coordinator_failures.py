"""Failure handling of a coordinator: excludes lost tasks and readmits them.

TensorFlow's handler waits until every lost worker is back, blocked in a call
that needs all of them, and ends training when a ps is lost. Ours excludes tasks
that do not answer from the cluster, readmits each once it answers, and restores
the variables of restarted ps while executions wait.
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
from tfps.recovery import ps_repair
from tfps.recovery import repair_interface
from tfps.recovery import worker_states

Incarnations = ps_repair.Incarnations
_Call = Callable[[], object]
_Result = TypeVar('_Result')


class FailureHandler(preemption_handler.PreemptionHandler):
  """Excludes lost tasks from the cluster and readmits them.

  Args:
    server_def: the `ServerDef` of TensorFlow's handler.
    cluster: the `Cluster` of TensorFlow's handler.
    incarnations: returns, by job and index, each task's incarnation, which
      changes with a restart; None while it does not answer. Must return within
      seconds.

  Attributes:
    gate: entered by whatever is executed.
    tell_rest: argument `tell` of `QuiesceLock.closed`.
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
    self._dismissals = worker_states.Dismissals(
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
    """Number of repairs of ps."""
    return self._ps.num_repairs

  def repair_with(
    self, repairs: repair_interface.Repairs, *, timeout_secs: float
  ) -> None:
    """Repairs lost ps from now on; before, the loss of a ps is an error.

    Args:
      repairs: actions of a repair.
      timeout_secs: how long to wait for a lost ps.
    """
    found = self._incarnations()
    self._worker_states.registry.accept(ps_repair.of('worker', found))
    self._ps.repair_with(repairs, ps_repair.of('ps', found), timeout_secs)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again after each loss of a ps; returns its result.

    Raises:
      tf.errors.OpError: the function has failed for another reason.
      errors.DeadlineError: a ps was not restarted in time.
      errors.ReplacedError: another process has replaced this one.
    """
    if threading.current_thread() is self.thread:  # which repairs
      return function()
    while True:
      num_repairs = self.num_repairs
      try:
        return function()
      except tf.errors.OpError as error:
        if not self._ps.can_retry(error, num_repairs):
          self._raise_if_replaced(error)
          raise

  def repair(self) -> None:
    """Requests a repair although nothing has failed."""
    with self.condition:
      self._ps.note_loss()

  def dismiss(self, worker: int, timeout_secs: float) -> None:
    """Schedules nothing more on a worker until it restarts.

    Args:
      worker: its index.
      timeout_secs: how long to wait for the end of its current execution.
    """
    known = self._worker_states.registry.known
    self._dismissals.add(worker, known.get(worker))
    deadline = time.monotonic() + timeout_secs
    executing = self._cluster.workers[worker]
    while executing.busy_since is not None and time.monotonic() < deadline:
      self._stopping.wait(timeouts.current().poll_secs)

  def admit(self, worker: int, address: str, timeout_secs: float) -> bool:
    """Adds a worker to the cluster, or changes its address.

    Args:
      worker: its index.
      address: its address.
      timeout_secs: how long to wait until the runtime knows it.

    Returns:
      Whether the runtime knows it now. If not, it is told later.
    """
    with self.condition:
      server_def_lib.place(self._server_def, 'worker', worker, address)
      self._worker_states.exclude(worker)
      self.due.set()
      return self.condition.wait_for(
        lambda: not self._worker_states.is_excluded(worker), timeout_secs
      )

  def is_dismissed(self, worker: int) -> bool:
    """Returns whether a worker is to end and has not restarted."""
    return worker in self._dismissals

  def absent(self) -> set[int]:
    """Returns the workers that are lost or dismissed."""
    workers = range(len(self._cluster.workers))
    dismissed = {i for i in workers if self.is_dismissed(i)}
    return self._worker_states.away() | dismissed

  def wait_for_return(self, worker: int, recover: _Call) -> None:
    """Waits until a dismissed worker restarts; then recreates its resources."""
    logging.warning('worker:%d leaves on request.', worker)
    self._note_lost(worker)
    try:
      self._wait_until_back(worker)
    except errors.ReplacedError:  # raised again by the next closure
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
    if not self._worker_states.is_emptied(worker):
      if self._can_retry(worker, failure, num_repairs):
        if on_transient_failure_fn:
          on_transient_failure_fn()
        return
      if not preemption_handler.is_loss_of_worker(failure):
        self._raise_if_replaced(failure)
      self.check_is_lost_worker(failure)
      self._note_lost(worker)
      self._notify('lost', {worker})
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

  def _raise_if_replaced(self, failure: Exception) -> None:
    """Raises `ReplacedError` if that may be the cause of a failure."""
    if self._ps.repairs is not None and isinstance(failure, tf.errors.OpError):
      workers = range(len(self._cluster.workers))
      try:
        self._ps.check(workers)
      except errors.ReplacedError as error:
        raise error from failure

  def _can_retry(
    self, worker: int, failure: Exception, num_repairs: int
  ) -> bool:
    """Returns whether the worker can try again, once lost ps are repaired."""
    if not self._ps.can_retry(failure, num_repairs):
      return self._is_transient(failure)
    self._cluster.workers[worker].begin_datasets_again()
    return True

  def _is_transient(self, failure: Exception) -> bool:
    """Returns whether TensorFlow would just try again."""
    if self._ps.repairs is None and self.is_transient_loss_of_ps(failure):
      return True
    if self.is_transient_timeout(failure):
      return True
    return isinstance(failure, tf.errors.CancelledError) and '/job:' in str(
      failure
    )

  def _note_lost(self, worker: int) -> None:
    with self.condition:
      self._worker_states.note_lost(worker)
      self.due.set()

  def _wait_until_back(self, worker: int) -> None:
    """Waits for a worker; its resources have to be made again after this."""
    with self.condition:
      self.condition.wait_for(
        lambda: worker not in self._worker_states.away() or self._is_stopped()
      )
      if self._replaced is not None:
        raise self._replaced
      self._worker_states.note_refilled(worker)

  def _is_stopped(self) -> bool:
    """Returns whether losses are no longer handled."""
    return self._stopping.is_set() or self._replaced is not None

  def run(self) -> None:
    while not self._is_stopped():
      if not self.due.wait(timeouts.current().stuck_every_secs):
        self._detect_lost_ps()
        continue
      if self._stopping.is_set() or self._handle_losses():
        continue
      self._stopping.wait(timeouts.current().repair_poll_secs)

  def _detect_lost_ps(self) -> None:
    """Requests a repair if long executions may hang because of a lost ps."""
    since = min(
      (worker.busy_since or math.inf for worker in self._cluster.workers),
      default=math.inf,
    )
    secs = time.monotonic() - since
    if secs > timeouts.current().stuck_every_secs and self._ps.has_changed():
      self.repair()

  def _handle_losses(self) -> bool:
    """Repairs ps or readmits workers; returns whether anything was done."""
    try:
      return self._repair() if self._ps.is_lost else self._readmit()
    except errors.ReplacedError as error:
      with self.condition:
        self._replaced = error
        self.condition.notify_all()
      return True
    except (tf.errors.OpError, errors.DeadlineError) as error:
      logging.warning('A lost task could not be restored: %s', error)
      return False

  def _readmit(self) -> bool:
    """Readmits lost workers that answer; returns whether there were any."""
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
      'Workers that are back or new: %s.',
      ', '.join(f'worker:{i}' for i in sorted(back)),
    )
    joined = {i for i in back if i >= len(self._cluster.workers)}
    self._notify('joined', joined)
    self._notify('back', back - joined)
    with self.condition:
      self._worker_states.note_back(back)
      for worker in back:
        self._dismissals.discard(worker)
      self._notify_waiters()
    return True

  def _repair(self) -> bool:
    """Repairs the ps; returns whether the repair has ended."""
    if not self._ps.repair(self.tell_rest):
      return False
    with self.condition:
      self._ps.is_lost = False
      self._notify_waiters()
    return True

  def _update(self, found: Incarnations) -> None:
    """Tells the runtime which tasks are in the cluster: those that answer."""
    workers = ps_repair.of('worker', found)
    with self.condition:
      silent, unnoticed = self._worker_states.update(workers)
    self._notify('lost', unnoticed)
    self._notify('back', unnoticed - silent)
    moved: Mapping[tuple[str, int], str] = {}
    if self._ps.repairs is not None:
      answering = set(workers) - silent
      self._ps.check(answering)
      moved = self._ps.repairs.moved()
    without = {('worker', i) for i in silent}
    if self._ps.is_lost:
      server_def_lib.update(self._server_def, without=without, moved=moved)
    else:
      self._update_workers(without, moved)
    with self.condition:
      self._worker_states.set_excluded(silent)

  def _update_workers(
    self,
    without: Collection[tuple[str, int]],
    moved: Mapping[tuple[str, int], str],
  ) -> None:
    """Tells the runtime which workers are there, without a pause in execution.

    An execution may take long, or wait for just the worker that is back.
    """
    try:
      server_def_lib.update(
        self._server_def,
        without=without,
        moved=moved,
        forget_secs=timeouts.current().forget_worker_secs,
      )
    except stale_cache.StillExecutingError as error:
      names = ', '.join(
        f'worker:{worker.worker_index}'
        for worker in self._cluster.workers
        if worker.busy_since is not None
      )
      logging.warning(
        '%s is still executing: %s', names or 'This process', error
      )

  def _notify(self, kind: str, workers: set[int]) -> None:
    if self._ps.repairs is not None and workers:
      self._ps.repairs.notify(kind, workers)

  def _notify_waiters(self) -> None:
    """Wakes waiting threads; pauses this one's work if no task is lost."""
    is_due = self._ps.is_lost or self._worker_states.away()
    if not is_due and not self._stopping.is_set():
      self.due.clear()
    self.condition.notify_all()
