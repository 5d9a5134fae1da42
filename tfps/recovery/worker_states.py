"""States of a coordinator's workers: lost, excluded, emptied or dismissed."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from tfps.server import task_registry


class WorkerStates:
  """States of all workers, by index.

  A worker is *lost* once a thread has found it so, *excluded* while the runtime
  does not know it, and *emptied* once it has lost its resources, such as
  iterators, which have to be made again.

  Attributes:
    registry: the incarnations as of the last update.
  """

  def __init__(self) -> None:
    self.registry: task_registry.TaskRegistry[int]
    self.registry = task_registry.TaskRegistry()
    self._lost: set[int] = set()
    self._excluded: set[int] = set()
    self._excluded_since: set[int] = set()  # the last `update`
    self._emptied: set[int] = set()

  def away(self) -> set[int]:
    """Returns the workers that are lost or excluded."""
    return self._lost | self._excluded

  def is_emptied(self, worker: int) -> bool:
    """Returns whether the worker's resources have to be made again."""
    return worker in self._emptied

  def is_excluded(self, worker: int) -> bool:
    """Returns whether the runtime does not know the worker."""
    return worker in self._excluded

  def note_lost(self, worker: int) -> None:
    """Marks a worker as lost."""
    self._lost.add(worker)

  def exclude(self, worker: int) -> None:
    """Marks a worker as unknown to the runtime."""
    self._excluded.add(worker)
    self._excluded_since.add(worker)

  def update(
    self, found: Mapping[int, int | None]
  ) -> tuple[set[int], set[int]]:
    """Records the workers' current incarnations.

    Args:
      found: incarnations by index; None for a worker that does not answer.

    Returns:
      The workers that do not answer, and those whose loss was not known.
    """
    silent = {worker for worker, number in found.items() if number is None}
    self._excluded_since = set()
    restarted = self.registry.look(found)
    unnoticed = (silent | restarted) - self.away()
    self._emptied |= silent | restarted
    self._excluded |= silent
    self.registry.accept(found)
    return silent, unnoticed

  def set_excluded(self, workers: Collection[int]) -> None:
    """Marks as unknown to the runtime what an update of it has left out.

    Args:
      workers: those that were left out. Others are known now, except for those
        that were excluded since the last `update`.
    """
    self._excluded = {*workers, *self._excluded_since}

  def note_back(self, workers: Collection[int]) -> None:
    """Marks workers as no longer lost."""
    self._lost -= set(workers)

  def note_refilled(self, worker: int) -> None:
    """Marks a worker's resources as made again."""
    self._emptied.discard(worker)


class Dismissals:
  """Workers that are to end and get no more work until they restart.

  Args:
    incarnation: returns the incarnation of the worker with an index; None while
      it does not answer.
  """

  def __init__(self, incarnation: Callable[[int], int | None]) -> None:
    self._incarnation = incarnation
    self._dismissed: dict[int, int | None] = {}

  def add(self, worker: int, last_known: int | None) -> None:
    """Dismisses a worker.

    Args:
      worker: its index.
      last_known: its last known incarnation, used if it does not answer now.
    """
    self._dismissed[worker] = self._incarnation(worker) or last_known

  def __contains__(self, worker: int) -> bool:
    """Returns whether a worker is dismissed and has not restarted."""
    if worker not in self._dismissed:
      return False
    found = self._incarnation(worker)
    return found is None or found == self._dismissed[worker]

  def discard(self, worker: int) -> None:
    """Ends a dismissal, if there is one."""
    self._dismissed.pop(worker, None)
