"""Workers that wait for each other, as those see it who have them execute.

A function that does steps gets the number of the worker that executes it.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading
import time
from typing import Any

import tensorflow as tf

from tfps._utils import timeouts
from tfps.updates import policies
from tfps.updates.sync import bounded_staleness as bounded_staleness_lib
from tfps.updates.sync import calls
from tfps.updates.sync import presences
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.updates.sync import step_sync
from tfps.updates.sync import turnouts

WORKER = calls.WORKER


class SyncSession:
  """Those of a strategy.

  Args:
    policy: how many come.
    state: has the state.
    name: of the job; unique on the ps.
    worker: tells the worker that executes what this thread calls.
    tell: gets a worker, and how many steps may be applied twice because of it.

  Attributes:
    makes_one_update: whether a step of all workers makes one update.
  """

  _step_class: type[step_sync.BarrierStep] = step_sync.BarrierStep

  def __init__(
    self,
    policy: policies.Waiting,
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
    self.makes_one_update = isinstance(policy, policies.Sync)
    spare = policy.backup_workers if isinstance(policy, policies.Sync) else 0
    self.sync_ops = protocol_ops_lib.SyncOps(state, spare=spare, name=name)
    self.staleness_bound: bounded_staleness_lib.StalenessBound | None = None
    if isinstance(policy, policies.BoundedStaleness):
      self.staleness_bound = bounded_staleness_lib.StalenessBound(
        state, max_lead=policy.max_lead, name=name
      )
    # Traced now: a worker that is frozen would hold that up.
    self._ps = calls.Calls(self.sync_ops)
    self._updates_left: Callable[[], int] = _no_end
    self._lock = threading.Lock()
    self._pausing = threading.Lock()
    # What is to be executed, and the worker that has begun it.
    self._attempts: dict[presences.Participation, int | None] = {}
    self._num_ended = 0
    self._come_and_go = False  # instead of having their executions counted
    self._rests = False
    self._num_awaiting = 0
    self._at_work: Callable[[], object] = lambda: None

  def start(self) -> None:
    """Begins anew: gradients that have come are dropped, and nobody waits.

    To be called by the chief alone, at first, and once variables are set back.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    # Which may wait for who needs the lock.
    updates = min(self._updates_left(), _no_end())
    with self._lock:
      self._num_ended = 0
      self._rests = False
      self._ps.call('start', _now(), updates)

  def start_afresh(self) -> None:
    """As `start`, when nothing is being executed, nor to be."""
    with self._lock:
      self._attempts.clear()
    self.start()

  def start_for(self, updates_left: Callable[[], int]) -> None:
    """As `start`, for a number of updates, which is asked for each time."""
    self._updates_left = updates_left
    self.start()

  def end_there(self) -> None:
    """Has the next `start` be for updates without an end."""
    self._updates_left = _no_end

  def rest(self) -> None:
    """Has nobody wait for more than what is to be executed already.

    Until `start`. Meanwhile nothing is to be scheduled.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      if self._come_and_go:
        self._rests = True
        self._ps.call('dismiss', self._are_busy())
      else:
        self._ps.call('rest', self._num_ended + len(self._attempts))

  def try_to_rest(self, rest: bool) -> None:
    """Has nobody wait for more than what is being executed; or does so again.

    What goes wrong is only logged.
    """
    with self._lock:
      self._rests = rest
      self._tell_last()

  @contextlib.contextmanager
  def awaited(self) -> Iterator[None]:
    """Within it nothing is scheduled, for somebody waits for a result."""
    with self._lock:
      self._num_awaiting += 1
    try:
      yield
    finally:
      with self._lock:
        self._num_awaiting -= 1

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Keeps all workers from making updates, whatever they execute.

    It begins between two steps, of which each may make several updates. One
    thread at a time is within it.

    Raises:
      tf.errors.DeadlineExceededError: an update does not end.
      tf.errors.AbortedError: `start` has ended the pause before its time, so
        that there may have been updates.
      tf.errors.OpError: a ps is lost, or a worker that is making an update.
    """
    deadline = time.monotonic() + self.policy.timeout_secs
    with self._pausing:
      try:
        while self._pause(1)[0]:
          if time.monotonic() > deadline:
            raise tf.errors.DeadlineExceededError(
              None, None, 'An update has not ended.'
            )
          time.sleep(timeouts.current().short_poll_secs)
        yield
      except BaseException:
        self._pause(0)
        raise
      if not self._pause(0)[1]:
        raise tf.errors.AbortedError(
          None, None, 'Training has begun anew in the meantime.'
        )

  def _pause(self, value: int) -> tuple[int, int]:
    """How many updates are still under way, and the value before."""
    under_way, before = self._ps.call('pause', value).numpy().tolist()
    return under_way, before

  def call_at_work(self, function: Callable[[], object]) -> None:
    """Calls a function each time that something is about to be executed."""
    self._at_work = function

  def take_up(self, attempt: presences.Attempt) -> bool:
    """Whether anything is left to do of an attempt, before it is called."""
    del attempt
    return True

  def agree(self, ready: int, *, finished: bool) -> turnouts.StepDecision:
    """What to do with so many batches of a queue; here, steps on all of them.

    Args:
      ready: how many are at hand.
      finished: whether all has been done that is to be.
    """
    return turnouts.alone(ready, finished=finished)

  def settle(self) -> bool:
    """Has all workers hold what some have done in steps on a queue's batches.

    Returns:
      Whether what this worker has done counts.
    """
    return True

  def enter(self, attempt: presences.Participation, worker: int) -> None:
    """Takes note of what a worker is about to execute."""
    with self._lock:
      is_new = self._attempts.get(attempt) is None
      self._attempts[attempt] = worker
      if is_new and self._rests:
        self._tell_last()
    self._at_work()

  def fail(self, attempt: presences.Participation, worker: int) -> None:
    """Takes note of what has been cut short, and may be begun again."""
    if self._tell is not None and not self.makes_one_update:
      self._tell(f'worker:{worker}', attempt.num_steps)
    with self._lock:
      self._attempts[attempt] = None
      self._ps.try_to_call('leave_step', worker)
      if self._rests:
        self._tell_last()

  def leave(self, attempt: Any) -> None:
    """Takes note of what has been executed, to its end."""
    with self._lock:
      worker = self._attempts.pop(attempt, None)
      if worker is None:
        return
      if not attempt.comes_and_goes:
        self._num_ended += 1
      elif self._rests:
        self._ps.try_to_call('leave_out', worker, ps_state_lib.AWAY)

  def attempt(self, num_steps: int) -> presences.Attempt:
    """For an execution of so many steps."""
    return presences.Attempt(self, num_steps)

  def expect(self, attempt: presences.Participation) -> None:
    """Takes note of what is scheduled."""
    with self._lock:
      self._attempts[attempt] = None
      self._come_and_go = attempt.comes_and_goes

  def _tell_last(self) -> None:
    if not self._come_and_go:
      last = self._num_ended + len(self._busy()) if self._rests else -1
      self._ps.try_to_call('rest', last)
    elif self._rests:
      self._ps.try_to_call('dismiss', self._are_busy())

  def _busy(self) -> list[int]:
    """The workers that execute something."""
    return [w for w in self._attempts.values() if w is not None]

  def _are_busy(self) -> list[int]:
    busy = set(self._busy())
    return [int(worker in busy) for worker in range(ps_state_lib.MAX_WORKERS)]

  def total(self) -> ps_state_lib.Point:
    """What all points have counted.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return ps_state_lib.Point(*self.state.points.numpy().sum(axis=0).tolist())

  def leave_out(self, worker: int) -> None:
    """Has nobody wait for a worker, until it comes back.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.ABSENT)

  def step_out(self, worker: int) -> None:
    """Has nobody wait for a worker until it executes something again.

    Once all have stepped out, who begins next waits for all.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.AWAY)

  def dismiss_idle(self) -> None:
    """Likewise of the workers for which this process has nothing to do.

    Where these do not come and go, it will have something for them: not before
    it has a result, though, if it waits for one, and that may be the result of
    who waits for them.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      if None in self._attempts.values():
        return
      if self._come_and_go or (self._num_awaiting and self._all_wait()):
        self._ps.call('dismiss', self._are_busy())

  def _all_wait(self) -> bool:
    """Whether all who execute something wait for others."""
    return sum(row.even + row.odd for row in self._points()) >= len(
      self._busy()
    )

  def take_in(self, worker: int) -> None:
    """Has all wait for a worker that is about to begin, though it was done.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('take_in', worker)

  def end(self, worker: int) -> None:
    """Has nobody wait for a worker, which is done, until it begins again.

    Once all have said so, who begins next waits for all.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.DONE)

  def give_up_on(self, worker: int) -> None:
    """Has nobody wait for an update that a worker was to make and cannot.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._ps.call('leave_out', worker, ps_state_lib.PRESENT)

  @property
  def are_executing(self) -> bool:
    """Whether anything is being executed that this process has begun."""
    with self._lock:
      return bool(self._busy())

  def versions_awaited(self) -> list[int]:
    """Of the points at which somebody waits.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return [row.version for row in self._points() if row.even or row.odd]

  def _points(self) -> list[ps_state_lib.Point]:
    return [
      ps_state_lib.Point(*row) for row in self.state.points.numpy().tolist()
    ]

  def around(self, steps: Callable[..., Any]) -> Callable[..., Any]:
    """What a worker is to execute, to be made a function of.

    Args:
      steps: a `tf.function` that gets, besides what it works on, the arguments
        of `sync_step`.

    Returns:
      What gets, in place of these, the number of the worker.
    """

    def execution(*args: Any) -> Any:
      given, worker = args[:-1], args[-1]
      sync_ops = self.sync_ops.begin(worker)
      versions = tf.stack([turn.version for turn in sync_ops])
      before = [versions]
      if self.staleness_bound is not None:
        before.append(self.staleness_bound.begin(worker))
      with tf.control_dependencies(before):
        result = steps(
          *given, worker, versions, tf.identity(sync_ops[0].quorum)
        )
      with tf.control_dependencies(tf.nest.flatten(result)):
        self.sync_ops.end(worker)
      return result

    return execution

  def sync_step(
    self,
    worker: tf.Tensor,
    versions: tf.Tensor,
    quorum: tf.Tensor,
    *,
    count: Callable[[], object] = lambda: None,
    comes_and_goes: bool = False,
  ) -> step_sync.BarrierStep | step_sync.StaleSyncStep:
    """For the function that is being traced.

    Args:
      worker: who executes it.
      versions: of all points.
      quorum: of all points.
      count: called where the first point of a step makes its update.
      comes_and_goes: whether workers do, as they have batches or not.
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


def _no_end() -> int:
  return 1 << 50


def _now() -> int:
  """A version later than all that were there before, of whatever process."""
  return time.time_ns() // 1000


def of(strategy: Any) -> SyncSession | None:
  """A strategy's; None if its workers do not wait for each other."""
  found: SyncSession | None = getattr(strategy, 'sync_session', None)
  return found
