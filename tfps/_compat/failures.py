"""What a coordinator's workers do when a task is lost.

TensorFlow's handler waits until every lost worker is back, blocked in a call
that needs all of them, and ends training when a ps is lost. Ours leaves the
tasks that do not answer out of the cluster, takes each back once it answers,
and can have a ps that has restarted filled anew while executions wait.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import threading
import time
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from tfps import _dismissals
from tfps import _gate
from tfps import _repairs
from tfps import _trouble
from tfps import errors
from tfps._compat import members

_RETRY_SECS = 0.2
_POLL_SECS = 0.05

Incarnations = Mapping[tuple[str, int], int | None]
_Call = Callable[[], object]
_Result = TypeVar('_Result')

_FAILURES = (
  tf.errors.OpError,
  cluster_coordinator.ClosureInputError,
  cluster_coordinator.ClosureAbortedError,
  TypeError,
)


class FailureHandler(cluster_coordinator.WorkerPreemptionHandler):
  """Takes lost tasks out of the cluster and back into it.

  Args:
    server_def: as TensorFlow's.
    cluster: as TensorFlow's.
    incarnations: by job and index, each task's incarnation, which is another
      one after a restart, or None while it does not answer; must return within
      seconds.

  Attributes:
    gate: within which something is executed.
    num_repairs: how often lost ps have been repaired.
  """

  def __init__(
    self,
    server_def: Any,
    cluster: Any,
    incarnations: Callable[[], Incarnations],
  ) -> None:
    self.gate = _gate.Gate()
    self._incarnations = incarnations
    self._stopping = threading.Event()
    self._repairs: _repairs.Repairs | None = None
    self._ps: dict[int, int | None] = {}
    self.num_repairs = 0
    self._ps_is_lost = False
    self._timeout_secs = 0.0
    self._lost_at = 0.0
    # That of tasks which cannot reach ps that are alive.
    self._trouble = _trouble.Trouble()
    self._error: BaseException | None = None
    self._replaced: errors.ReplacedError | None = None
    self._lost: set[int] = set()  # workers whose threads wait for them
    self._left_out: set[int] = set()  # workers that the runtime knows not
    # Workers that have lost what they held, which their threads may not know.
    self._are_bare: set[int] = set()
    self._workers: dict[int, int | None] = {}
    self._dismissals = _dismissals.Dismissals(
      lambda worker: self._incarnations().get(('worker', worker))
    )
    super().__init__(server_def, cluster)

  @property
  def thread(self) -> threading.Thread:
    thread: threading.Thread = self._preemption_handler_thread
    return thread

  def repair_with(
    self, repairs: _repairs.Repairs, *, timeout_secs: float
  ) -> None:
    """Has a lost ps repaired, where its loss was an error.

    Args:
      repairs: does it.
      timeout_secs: how long to wait for a ps that does not come back.
    """
    found = self._incarnations()
    self._ps, self._workers = _of('ps', found), _of('worker', found)
    self._repairs = repairs
    self._timeout_secs = timeout_secs

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result; it is called again after the loss of a ps."""
    if threading.current_thread() is self.thread:  # which repairs
      return function()
    while True:
      num_repairs = self.num_repairs
      try:
        return function()
      except tf.errors.OpError as error:
        if not self._mends(error, num_repairs):
          raise

  def repair(self) -> None:
    """Asks for a repair, although nothing has failed."""
    with self._worker_up_cond:
      self._note_loss()

  def dismiss(self, worker: int, timeout_secs: float) -> None:
    """Gives a worker nothing more to do, until it has restarted.

    Returns once it has done what it does now, or time is over.
    """
    self._dismissals.add(worker, self._workers.get(worker))
    deadline = time.monotonic() + timeout_secs
    executing = self._cluster.workers[worker]
    while executing.busy_since is not None and time.monotonic() < deadline:
      self._stopping.wait(_POLL_SECS)

  def take_in(self, worker: int, address: str, timeout_secs: float) -> bool:
    """Has a worker in the cluster that was not, or was elsewhere.

    Args:
      worker: its index.
      address: where it answers.
      timeout_secs: how long to wait for the cluster to be told.

    Returns:
      Whether it is in the cluster now. If not, it will be.
    """
    with self._worker_up_cond:
      members.place(self._server_def, 'worker', worker, address)
      self._left_out.add(worker)
      self._cluster_due_for_update_or_finish.set()
      return self._worker_up_cond.wait_for(
        lambda: worker not in self._left_out, timeout_secs
      )

  def is_dismissed(self, worker: int) -> bool:
    """Whether a worker is to end, and has not restarted."""
    return worker in self._dismissals

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
    self._should_preemption_thread_run = False
    self._stopping.set()
    self._cluster_due_for_update_or_finish.set()
    if self._cluster_update_lock.acquire(timeout=2.0):
      self._worker_up_cond.notify_all()
      self._cluster_update_lock.release()

  @contextlib.contextmanager
  def wait_on_failure(
    self,
    on_failure_fn: Callable[[Exception], object] | None = None,
    on_transient_failure_fn: _Call | None = None,
    on_recovery_fn: _Call | None = None,
    worker_device_name: str = '(unknown)',
  ) -> Iterator[None]:
    self._prepare()
    try:
      with self.gate:
        num_repairs = self.num_repairs
        yield
      return
    except _FAILURES as error:
      failure = error
    worker = int(worker_device_name.rpartition(':')[2])
    if worker not in self._are_bare:
      if self._goes_on(worker, failure, num_repairs):
        if on_transient_failure_fn:
          on_transient_failure_fn()
        return
      self._validate_preemption_failure(failure)
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

  def _goes_on(self, worker: int, failure: Exception, num_repairs: int) -> bool:
    """Whether the worker can just try again, with all mended that has to be."""
    if not self._mends(failure, num_repairs):
      return self._is_passing(failure)
    self._cluster.workers[worker].begin_datasets_again()
    return True

  def _prepare(self) -> None:
    while self._repairs is not None:
      num_repairs = self.num_repairs
      try:
        self._repairs.prepare()
      except tf.errors.OpError as error:
        if not self._mends(error, num_repairs):
          raise
      else:
        return

  def _mends(self, failure: Exception, num_repairs: int) -> bool:
    """Whether a ps had to be repaired, and has been; waits for it.

    Args:
      failure: of something that was tried.
      num_repairs: what it was then.
    """
    if self._repairs is None:
      return False
    if num_repairs != self.num_repairs:  # it has been, meanwhile
      return True
    if _of('ps', self._incarnations()) == self._ps:
      return cluster_coordinator._is_ps_failure(failure) and self._passes(
        failure
      )
    self._wait_for_repair()
    return True

  def _passes(self, failure: Exception) -> bool:
    """Whether to try again what could not reach a ps that is alive."""
    if self._trouble.note() > self._timeout_secs:
      return False
    logging.warning('A ps cannot be reached: %s', failure)
    self._ps.update(dict.fromkeys(self._trouble.strangers(failure, self._ps)))
    self._stopping.wait(_RETRY_SECS)
    return not self._stopping.is_set()

  def _wait_for_repair(self) -> None:
    with self._worker_up_cond:
      self._note_loss()
      self._worker_up_cond.wait_for(
        lambda: not self._ps_is_lost or self._is_over()
      )
      if error := self._replaced or self._error:
        raise error

  def _note_loss(self) -> None:
    if not self._ps_is_lost:
      self._ps_is_lost = True
      self._lost_at = time.monotonic()
    self._cluster_due_for_update_or_finish.set()

  def _is_passing(self, failure: Exception) -> bool:
    """Whether TensorFlow would just try again."""
    if self._repairs is None and (
      self._cluster._record_and_ignore_transient_ps_failure(failure)
    ):
      return True
    if self._cluster._record_and_ignore_transient_timeouts(failure):
      return True
    return isinstance(failure, tf.errors.CancelledError) and '/job:' in str(
      failure
    )

  def _note_lost(self, worker: int) -> None:
    with self._worker_up_cond:
      self._lost.add(worker)
      self._cluster_due_for_update_or_finish.set()

  def _wait_until_back(self, worker: int) -> None:
    """Waits for a worker; what it held is to be made anew after this."""
    with self._worker_up_cond:
      self._worker_up_cond.wait_for(
        lambda: worker not in self._lost | self._left_out or self._is_over()
      )
      if self._replaced is not None:
        raise self._replaced
      self._are_bare.discard(worker)

  def _is_over(self) -> bool:
    """Whether nothing is mended any more."""
    return self._stopping.is_set() or self._replaced is not None

  def _preemption_handler(self) -> None:
    while not self._is_over():
      self._cluster_due_for_update_or_finish.wait()
      if self._stopping.is_set() or self._has_mended():
        continue
      self._stopping.wait(_RETRY_SECS)

  def _has_mended(self) -> bool:
    """Does what can be done now; whether it was anything."""
    try:
      return self._repair() if self._ps_is_lost else self._take_back()
    except errors.ReplacedError as error:
      with self._worker_up_cond:
        self._replaced = error
        self._worker_up_cond.notify_all()
      return True
    except tf.errors.OpError as error:
      logging.warning('A lost task could not be taken back: %s', error)
      return False

  def _take_back(self) -> bool:
    """Takes in the lost workers that answer."""
    found = self._incarnations()
    back = {
      worker
      for worker in self._lost | self._left_out
      if found.get(('worker', worker)) is not None
      and worker not in self._dismissals
    }
    if not back or None in _of('ps', found).values():
      return False
    self._update(found)
    logging.warning(
      'Back, or new: %s.', ', '.join(f'worker:{i}' for i in sorted(back))
    )
    joined = {i for i in back if i >= len(self._cluster.workers)}
    self._tell('joined', joined)
    self._tell('back', back - joined)
    with self._worker_up_cond:
      self._lost -= back
      for worker in back:
        self._dismissals.discard(worker)
      self._settle()
    return True

  def _repair(self) -> bool:
    """Repairs the ps, once all have restarted."""
    assert self._repairs is not None
    ps = _of('ps', self._incarnations())
    if None in ps.values():
      if not self._has_given_up(ps):
        return False
    else:
      # What was executed before all is in place would be set back by it.
      with self.gate.closed():
        self._repairs.begin()
        while not self._is_repaired():
          if self._stopping.wait(_RETRY_SECS):
            return False
    with self._worker_up_cond:
      self._ps_is_lost = False
      self._settle()
    return True

  def _is_repaired(self) -> bool:
    """Whether there is nothing more to be done about the ps."""
    found = self._incarnations()
    ps = _of('ps', found)
    if None in ps.values():
      return self._has_given_up(ps)
    try:
      self._rebuild(found)
    except tf.errors.OpError as error:
      logging.warning('A lost ps could not be taken back: %s', error)
      return False
    return True

  def _rebuild(self, found: Incarnations) -> None:
    """Gives ps that have restarted what they had."""
    assert self._repairs is not None
    ps = _of('ps', found)
    restarted = {i for i in ps if ps[i] != self._ps.get(i)}
    self._error = None
    self._update(found)
    try:
      if restarted:
        self._repairs.rebuild(restarted)
    except tf.errors.OpError:
      raise
    except Exception as error:
      self._error = error
    self._ps = ps
    self.num_repairs += 1

  def _has_given_up(self, ps: Mapping[int, int | None]) -> bool:
    assert self._repairs is not None
    silent = {i for i, value in ps.items() if value is None}
    lost_secs = time.monotonic() - self._lost_at
    if lost_secs < self._timeout_secs:
      self._repairs.replace(silent, lost_secs)
      return False
    names = [f'ps:{i}' for i in sorted(silent)]
    self._error = errors.not_back(names, self._timeout_secs)
    return True

  def _update(self, found: Incarnations) -> None:
    """Tells the runtime who is in the cluster: those that answer."""
    workers = _of('worker', found)
    silent = {i for i, incarnation in workers.items() if incarnation is None}
    restarted = {
      i for i in workers if workers[i] != self._workers.get(i, workers[i])
    }
    with self._worker_up_cond:
      unnoticed = (silent | restarted) - self._lost - self._left_out
      self._are_bare |= silent | restarted
      self._left_out |= silent
      self._workers = workers
    self._tell('lost', unnoticed)
    self._tell('back', unnoticed - silent)
    moved: Mapping[tuple[str, int], str] = {}
    if self._repairs is not None:
      answering = set(workers) - silent
      self._repairs.check({'ps': self._ps, 'worker': answering})
      moved = self._repairs.moved()
    members.update(
      self._server_def, without={('worker', i) for i in silent}, moved=moved
    )
    self._left_out = silent

  def _tell(self, kind: str, workers: set[int]) -> None:
    if self._repairs is not None and workers:
      self._repairs.notice(kind, workers)

  def _settle(self) -> None:
    """Wakes who waits; sleeps if nobody is lost any more."""
    is_due = self._ps_is_lost or self._lost or self._left_out
    if not is_due and not self._stopping.is_set():
      self._cluster_due_for_update_or_finish.clear()
    self._worker_up_cond.notify_all()


def _of(job: str, found: Incarnations) -> dict[int, int | None]:
  return {i: value for (name, i), value in found.items() if name == job}
