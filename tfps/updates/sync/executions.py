"""Executions that this process has scheduled and that have not ended.

Workers wait for each other's gradients. So that none waits for a worker that
will do no more steps, the ps are told which executions there still are.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading

from tfps.updates.sync import participation as participation_lib
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync import worker_table


class Executions:
  """The executions, each either scheduled or running on a worker.

  Args:
    ps: calls the operations on the synchronization state.
    state: the synchronization state.
  """

  def __init__(
    self, ps: protocol_ops_lib.HostCalls, state: ps_state_lib.SyncState
  ) -> None:
    self._ps = ps
    self._state = state
    self._lock = threading.Lock()
    # None until a worker begins it.
    self._workers: dict[participation_lib.Participation, int | None] = {}
    # Those that ended since the last start, except those of queues.
    self._num_ended = 0
    # Whether they belong to queues, so that their number is unknown.
    self._come_and_go = False
    self._rests = False
    self._num_awaiting = 0
    self._on_begin: Callable[[], object] = lambda: None

  @property
  def are_running(self) -> bool:
    """True while a worker runs one of them."""
    with self._lock:
      return bool(self._busy())

  def call_on_begin(self, function: Callable[[], object]) -> None:
    """Registers a function that is called as each execution begins."""
    self._on_begin = function

  def start(self, now: int, updates: int) -> None:
    """Releases workers that wait, and lets all wait again.

    Args:
      now: a version above all earlier ones.
      updates: how many updates may be made.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      self._num_ended = 0
      self._rests = False
      self._ps.call('start', now, updates)

  def forget(self) -> None:
    """Forgets all executions; none may be running."""
    with self._lock:
      self._workers.clear()

  def expect(self, execution: participation_lib.Participation) -> None:
    """Adds an execution that no worker has begun."""
    with self._lock:
      self._workers[execution] = None
      self._come_and_go = execution.comes_and_goes

  def enter(
    self, execution: participation_lib.Participation, worker: int
  ) -> None:
    """Notes that a worker begins an execution, scheduled or not."""
    with self._lock:
      is_new = self._workers.get(execution) is None
      self._workers[execution] = worker
      if is_new and self._rests:
        self._tell_last()
    self._on_begin()

  def fail(
    self, execution: participation_lib.Participation, worker: int
  ) -> None:
    """Returns an execution that failed on a worker to the scheduled ones."""
    with self._lock:
      self._workers[execution] = None
      self._ps.try_to_call('leave_step', worker)
      if self._rests:
        self._tell_last()

  def leave(self, execution: participation_lib.Participation) -> None:
    """Removes an execution that ended."""
    with self._lock:
      worker = self._workers.pop(execution, None)
      if worker is None:
        return
      if not execution.comes_and_goes:
        self._num_ended += 1
      elif self._rests:
        self._ps.try_to_call('leave_out', worker, worker_table.AWAY)

  def rest(self) -> None:
    """Ends waits for executions beyond those that are scheduled.

    It lasts until `start`. Meanwhile nothing may be scheduled.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      if self._come_and_go:
        self._rests = True
        self._ps.call('dismiss', self._busy_mask())
      else:
        self._ps.call('rest', self._num_ended + len(self._workers))

  def try_to_rest(self, rest: bool) -> None:
    """Ends waits for executions beyond those that are running; logs errors.

    Args:
      rest: whether to do so; False lets workers wait again.
    """
    with self._lock:
      self._rests = rest
      self._tell_last()

  @contextlib.contextmanager
  def awaited(self) -> Iterator[None]:
    """Returns a context in which this process waits and schedules nothing."""
    with self._lock:
      self._num_awaiting += 1
    try:
      yield
    finally:
      with self._lock:
        self._num_awaiting -= 1

  def dismiss_idle(self) -> None:
    """Excludes workers for which this process has no executions.

    Workers with a fixed number of executions will get more. They are excluded
    only if this process schedules none before it has a result, while all busy
    workers wait for others.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      if None in self._workers.values():
        return
      if self._come_and_go or (self._num_awaiting and self._all_wait()):
        self._ps.call('dismiss', self._busy_mask())

  def _all_wait(self) -> bool:
    num_waiting = sum(row.even + row.odd for row in self._state.read_points())
    return num_waiting >= len(self._busy())

  def _tell_last(self) -> None:
    if not self._come_and_go:
      last = self._num_ended + len(self._busy())
      self._ps.try_to_call('rest', last if self._rests else -1)
    elif self._rests:
      self._ps.try_to_call('dismiss', self._busy_mask())

  def _busy(self) -> list[int]:
    """Returns the workers that run executions, one entry per execution."""
    return [w for w in self._workers.values() if w is not None]

  def _busy_mask(self) -> list[int]:
    """Returns 1 for each busy worker and 0 for others, by worker number."""
    busy = set(self._busy())
    return [int(worker in busy) for worker in range(worker_table.MAX_WORKERS)]
