"""Admission of workers that join while others train."""

from collections.abc import Callable

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import coordinator_recovery as coordinator_recovery_lib
from tfps.server import health
from tfps.server import registration as registration_lib


class WorkerAdmission:
  """Decides which workers may join a coordinator's training.

  A worker with the next index is new. One with an index in use is the same
  worker, restarted, maybe at another address.

  Args:
    guard: recovery of the strategy.
    registration: registration of this process with the servers.
    note: called with each worker that is new or has moved, and its address.
  """

  def __init__(
    self,
    guard: coordinator_recovery_lib.CoordinatorRecovery,
    registration: registration_lib.Registration,
    note: Callable[[spec_lib.Task, str], object],
  ) -> None:
    self._guard = guard
    self._registration = registration
    self._note = note

  def admit(self, worker: spec_lib.Task, address: str) -> None:
    """Admits a worker, or logs why it cannot join.

    Args:
      worker: the task as which it wants to join.
      address: its address.
    """
    try:
      reason = self._reason_against(worker, address)
      if reason is None:
        self._admit(worker, address)
        return
    except (
      tf.errors.OpError,
      errors.UnreachableError,
      errors.ClusterMismatchError,
    ) as error:
      reason = errors.first_line(error)
    logging.log_every_n_seconds(
      logging.WARNING,
      '%s at %s cannot join: %s',
      timeouts.current().warn_every_secs,
      worker,
      address,
      reason,
    )

  def _reason_against(self, worker: spec_lib.Task, address: str) -> str | None:
    known = self._guard.workers
    if worker.job != 'worker':
      return 'it is not a worker.'
    if worker not in known and worker.index != len(known):
      return f'the next worker is worker:{len(known)}. Set its --task_index so.'
    current = known.get(worker, address)
    if current != address and health.is_alive(worker, current):
      return f'{worker} is alive at {current}.'
    return None

  def _admit(self, worker: spec_lib.Task, address: str) -> None:
    self._registration.check(worker, address)
    known = self._guard.workers.get(worker)
    if known != address and not self._guard.admit(worker, address):
      return  # not training yet; the worker asks again
    self._registration.add(worker, address)
    if known != address:
      self._note(worker, address)
