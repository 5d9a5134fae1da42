"""Session of synchronized steps, as the process that starts them sees it.

A function that does steps gets the number of the worker that executes it. The
protocol is described in `protocol`.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading
import time
from typing import Any

import tensorflow as tf

from tfps.updates import policies
from tfps.updates import sessions
from tfps.updates.sync import bounded_staleness as bounded_staleness_lib
from tfps.updates.sync import executions as executions_lib
from tfps.updates.sync import participation
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync import step_sync
from tfps.updates.sync import update_pauses


class SyncSession(sessions.Session):
  """Synchronizes the workers that execute steps of one strategy.

  Args:
    policy: `Sync` or `BoundedStaleness`.
    state: synchronization state on the ps.
    name: name of the job; unique on the ps.
    worker: returns the number of the worker for which this thread executes.
    tell: called with a worker's name and the number of steps that may have been
      applied twice because it failed.

  Attributes:
    policy: as given.
    state: as given.
    name: as given.
  """

  _step_class: type[step_sync.BarrierStep] = step_sync.BarrierStep

  def __init__(
    self,
    policy: policies.Policy,
    state: ps_state_lib.SyncState,
    *,
    name: str,
    worker: Callable[[], int],
    tell: Callable[[str, int], object] | None = None,
  ) -> None:
    self.worker = worker
    self._tell = tell
    self.policy = policy
    self.state = state
    self.name = name
    self.makes_one_update = policy.makes_one_update
    self.sync_ops = protocol_ops_lib.SyncOps(
      state, spare=policy.backup_workers, name=name
    )
    self.staleness_bound: bounded_staleness_lib.StalenessBound | None = None
    if isinstance(policy, policies.BoundedStaleness):
      self.staleness_bound = bounded_staleness_lib.StalenessBound(
        state, max_lead=policy.max_lead, name=name
      )
    # Traced now: later, a frozen worker would delay it.
    self._ps = protocol_ops_lib.HostCalls(self.sync_ops)
    self._updates_left: Callable[[], int] = _unlimited
    self._lock = threading.Lock()
    self._pauses = update_pauses.UpdatePauses(self._ps, policy.timeout_secs)
    self._executions = executions_lib.Executions()
    self._rests = False
    self._num_awaiting = 0
    self._on_execution: Callable[[], object] = lambda: None

  def start(self) -> None:
    """Resets the state: drops pending gradients and releases waiting workers.

    Only the chief calls it, before training and after variables were restored.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    # The call may wait for a thread that needs the lock.
    updates = min(self._updates_left(), _unlimited())
    with self._lock:
      self._executions.num_ended = 0
      self._rests = False
      self._ps.call('start', _now(), updates)

  def start_afresh(self) -> None:
    """Forgets all executions, then starts; nothing may be executing."""
    with self._lock:
      self._executions.clear()
    self.start()

  def start_for(self, updates_left: Callable[[], int]) -> None:
    """Starts for a limited number of updates.

    Args:
      updates_left: returns the number; also called by each later `start`.
    """
    self._updates_left = updates_left
    self.start()

  def end_there(self) -> None:
    """Removes the limit of updates, from the next `start`."""
    self._updates_left = _unlimited

  def rest(self) -> None:
    """Ends waits for executions beyond those that are scheduled.

    It lasts until `start`. Meanwhile nothing may be scheduled.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      if self._executions.come_and_go:
        self._rests = True
        self._ps.call('dismiss', self._executions.busy_mask())
      else:
        last = self._executions.num_ended + len(self._executions)
        self._ps.call('rest', last)

  def try_to_rest(self, rest: bool) -> None:
    """Ends waits for executions beyond those that are running; logs errors.

    Args:
      rest: whether to do so; False lets workers wait again.
    """
    with self._lock:
      self._rests = rest
      self._send_last()

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

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context without updates; see `UpdatePauses.paused`."""
    return self._pauses.paused()

  def call_on_execution(self, function: Callable[[], object]) -> None:
    """Registers a function that is called as each execution begins."""
    self._on_execution = function

  def prepare(self, attempt: participation.Attempt) -> bool:
    """Returns whether an attempt has steps left to do, before it is called."""
    del attempt
    return True

  def agree(self, ready: int, *, finished: bool) -> participation.StepDecision:
    """Decides how many steps to do on batches of a queue; here, on all.

    Args:
      ready: number of batches at hand.
      finished: whether no work is left.
    """
    return participation.StepDecision.alone(ready, finished=finished)

  def settle(self) -> bool:
    """Copies the results of steps on a queue's batches to all workers.

    Returns:
      Whether the steps of this worker count.
    """
    return True

  def enter(self, attempt: participation.Participation, worker: int) -> None:
    """Notes that a worker begins an execution."""
    with self._lock:
      is_new = self._executions.begin(attempt, worker)
      if is_new and self._rests:
        self._send_last()
    self._on_execution()

  def fail(self, attempt: participation.Participation, worker: int) -> None:
    """Notes that an execution failed on a worker, and may be repeated."""
    if self._tell is not None and not self.makes_one_update:
      self._tell(f'worker:{worker}', attempt.num_steps)
    with self._lock:
      self._executions.interrupt(attempt)
      self._ps.try_to_call('leave_step', worker)
      if self._rests:
        self._send_last()

  def leave(self, attempt: Any) -> None:
    with self._lock:
      worker = self._executions.end(attempt)
      if worker is not None and attempt.comes_and_goes and self._rests:
        self._ps.try_to_call('leave_out', worker, ps_state_lib.AWAY)

  def expect(self, attempt: participation.Participation) -> None:
    """Notes that an execution is scheduled."""
    with self._lock:
      self._executions.schedule(attempt)

  def _send_last(self) -> None:
    executions = self._executions
    if not executions.come_and_go:
      last = executions.num_ended + len(executions.busy())
      self._ps.try_to_call('rest', last if self._rests else -1)
    elif self._rests:
      self._ps.try_to_call('dismiss', executions.busy_mask())

  def total(self) -> ps_state_lib.Point | None:
    """Returns the sums of all points' counters; None if each updates alone.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if not self.makes_one_update:
      return None
    return ps_state_lib.Point(*self.state.points.numpy().sum(axis=0).tolist())

  def leave_out(self, worker: int) -> None:
    """Excludes a lost worker from updates until it is back.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.ABSENT)

  def step_out(self, worker: int) -> None:
    """Excludes a worker from updates until it executes something again.

    Once all workers have stepped out, the next one waits for all.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.AWAY)

  def dismiss_idle(self) -> None:
    """Excludes workers for which this process has no executions.

    Workers with a fixed number of executions will get more. They are excluded
    only if this process schedules none before it has a result, while all busy
    workers wait for others.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      if self._executions.any_scheduled:
        return
      if self._executions.come_and_go or (
        self._num_awaiting and self._all_wait()
      ):
        self._ps.call('dismiss', self._executions.busy_mask())

  def _all_wait(self) -> bool:
    num_waiting = sum(row.even + row.odd for row in self.state.read_points())
    return num_waiting >= len(self._executions.busy())

  def take_in(self, worker: int) -> None:
    """Includes a worker that is about to begin, even if it was done.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('take_in', worker)

  def end(self, worker: int) -> None:
    """Excludes a worker that is done, until it begins again.

    Once all workers are done, the next one that begins waits for all.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.DONE)

  def abandon_update(self, worker: int) -> None:
    """Lets another worker make the update that a restarted worker was to make.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.PRESENT)

  @property
  def are_executing(self) -> bool:
    """True while an execution that this process began is running."""
    with self._lock:
      return bool(self._executions.busy())

  def versions_awaited(self) -> list[int]:
    """Returns the versions of the points at which workers wait.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return [
      row.version for row in self.state.read_points() if row.even or row.odd
    ]

  def around(self, steps: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps steps in the beginning and the end of an execution.

    Args:
      steps: a `tf.function` whose last arguments are the first three of
        `sync_step`.

    Returns:
      A function to be traced, which takes the worker's number in their place.
    """
    return step_sync.execution(steps, self.sync_ops, self.staleness_bound)

  def sync_step(
    self,
    worker: tf.Tensor,
    versions: tf.Tensor,
    quorum: tf.Tensor,
    *,
    count: Callable[[], object] = lambda: None,
    comes_and_goes: bool = False,
  ) -> step_sync.BarrierStep | step_sync.StaleSyncStep:
    """Returns the synchronization of steps in the function being traced.

    Args:
      worker: number of the worker that executes it, an int64 scalar.
      versions: version of each point, int64.
      quorum: number of gradients that the next updates need, an int64 scalar.
      count: called where the first point of a step makes its update.
      comes_and_goes: whether workers take part only while they have batches.
    """
    if self.staleness_bound is not None:
      return step_sync.StaleSyncStep(self.staleness_bound, worker)
    sync_ops = [
      protocol_ops_lib.StepTicket(v, quorum) for v in tf.unstack(versions)
    ]
    made = self._step_class(
      self.sync_ops, self.state, self.name, worker, sync_ops, count
    )
    made.comes_and_goes = comes_and_goes
    return made


def _unlimited() -> int:
  return 1 << 50


def _now() -> int:
  """Returns a version above all earlier ones of any process."""
  return time.time_ns() // 1000
