"""Takes in workers that ask for it while others train."""

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
  """Decides who may train with a coordinator, too.

  A worker with the next index is one more. One with an index that is taken is
  the same worker, started again, perhaps elsewhere.

  Args:
    guard: of the strategy.
    registration: of this process.
    note: called with each new worker and its address.
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

  def take_in(self, worker: spec_lib.Task, address: str) -> None:
    """Has a worker train with the others, if it may."""
    try:
      reason = self._reason_against(worker, address)
      if reason is None:
        self._take_in(worker, address)
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
      return 'it is no worker.'
    if worker not in known and worker.index != len(known):
      return (
        f'the next worker is worker:{len(known)}. Give it that --task_index.'
      )
    home = known.get(worker, address)
    if home != address and health.is_alive(worker, home):
      return f'{worker} is at {home} and alive.'
    return None

  def _take_in(self, worker: spec_lib.Task, address: str) -> None:
    self._registration.check(worker, address)
    known = self._guard.workers.get(worker)
    if known != address and not self._guard.take_in(worker, address):
      return  # nobody trains now; it asks again
    self._registration.add(worker, address)
    if known != address:
      self._note(worker, address)
