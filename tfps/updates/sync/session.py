"""Session of synchronized steps, as the process that starts them sees it.

A function that does steps gets the number of the worker that executes it. The
protocol is described in `protocol`.
"""

from collections.abc import Callable
import contextlib
import time
from typing import Any

import tensorflow as tf

from tfps.updates import policies
from tfps.updates import sessions
from tfps.updates.sync import bounded_staleness as bounded_staleness_lib
from tfps.updates.sync import executions as executions_lib
from tfps.updates.sync import members as members_lib
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
    executions: those that this process has begun or scheduled.
    members: the workers that updates wait for.
  """

  executions: executions_lib.Executions

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
    ps = protocol_ops_lib.HostCalls(self.sync_ops)
    self._updates_left: Callable[[], int] = _unlimited
    self._pauses = update_pauses.UpdatePauses(ps, policy.timeout_secs)
    self.members = members_lib.Members(ps)
    self.executions = executions_lib.Executions(ps, state)

  def start(self) -> None:
    """Resets the state: drops pending gradients and releases waiting workers.

    Only the chief calls it, before training and after variables were restored.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    # The call may wait for a thread that tells of an execution.
    updates = min(self._updates_left(), _unlimited())
    self.executions.start(_now(), updates)

  def start_afresh(self) -> None:
    """Forgets all executions, then starts; nothing may be executing."""
    self.executions.forget()
    self.start()

  def limit(self, updates_left: Callable[[], int] | None) -> None:
    self._updates_left = updates_left or _unlimited

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context without updates; see `UpdatePauses.paused`."""
    return self._pauses.paused()

  def expect(self, attempt: participation.Participation) -> None:
    """Notes that an execution is scheduled."""
    self.executions.expect(attempt)

  def enter(self, attempt: participation.Participation, worker: int) -> None:
    """Notes that a worker begins an execution."""
    self.executions.enter(attempt, worker)

  def fail(self, attempt: participation.Participation, worker: int) -> None:
    """Notes that an execution failed on a worker, and may be repeated."""
    if self._tell is not None and not self.makes_one_update:
      self._tell(f'worker:{worker}', attempt.num_steps)
    self.executions.fail(attempt, worker)

  def leave(self, attempt: Any) -> None:
    self.executions.leave(attempt)

  def step_out(self, worker: int) -> None:
    """Excludes a worker from updates until it executes something again.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.members.step_out(worker)

  def end(self, worker: int) -> None:
    """Excludes a worker that is done; see `members.Members.end`.

    Args:
      worker: its number.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.members.end(worker)

  def total(self) -> ps_state_lib.Point | None:
    """Returns the sums of all points' counters; None if each updates alone.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if not self.makes_one_update:
      return None
    return ps_state_lib.Point(*self.state.points.numpy().sum(axis=0).tolist())

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
