"""Executions that this process has scheduled and that have not ended."""

from tfps.updates.sync import participation as participation_lib
from tfps.updates.sync import ps_state as ps_state_lib


class Executions:
  """Table of executions, each either scheduled or running on a worker.

  Not safe for threads: the session accesses it under its lock.

  Attributes:
    num_ended: number of executions that ended since the last reset; those of
      queues are not counted.
    come_and_go: whether the executions belong to queues, so that their number
      is unknown.
  """

  def __init__(self) -> None:
    self.num_ended = 0
    self.come_and_go = False
    # None until a worker begins it.
    self._workers: dict[participation_lib.Participation, int | None] = {}

  def __len__(self) -> int:
    return len(self._workers)

  def clear(self) -> None:
    """Forgets all executions."""
    self._workers.clear()

  def schedule(self, execution: participation_lib.Participation) -> None:
    """Adds an execution that no worker has begun."""
    self._workers[execution] = None
    self.come_and_go = execution.comes_and_goes

  def begin(
    self, execution: participation_lib.Participation, worker: int
  ) -> bool:
    """Assigns an execution to a worker.

    Args:
      execution: scheduled or not.
      worker: number of the worker that begins it.

    Returns:
      Whether no worker had begun it before.
    """
    is_new = self._workers.get(execution) is None
    self._workers[execution] = worker
    return is_new

  def interrupt(self, execution: participation_lib.Participation) -> None:
    """Returns a failed execution to the scheduled ones."""
    self._workers[execution] = None

  def end(self, execution: participation_lib.Participation) -> int | None:
    """Removes an execution; returns its worker, or None if it had none."""
    worker = self._workers.pop(execution, None)
    if worker is not None and not execution.comes_and_goes:
      self.num_ended += 1
    return worker

  @property
  def any_scheduled(self) -> bool:
    """True if an execution waits for a worker to begin it."""
    return None in self._workers.values()

  def busy(self) -> list[int]:
    """Returns the workers that run executions, one entry per execution."""
    return [w for w in self._workers.values() if w is not None]

  def busy_mask(self) -> list[int]:
    """Returns 1 for each busy worker and 0 for others, by worker number."""
    busy = set(self.busy())
    return [int(worker in busy) for worker in range(ps_state_lib.MAX_WORKERS)]
