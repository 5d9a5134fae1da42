"""Workers that are to end, and get nothing to do until they restart."""

from collections.abc import Callable


class Dismissals:
  """Who is dismissed, and in which life.

  Args:
    incarnation: of a worker by its index, which is another one after a
      restart; None while it does not answer.
  """

  def __init__(self, incarnation: Callable[[int], int | None]) -> None:
    self._incarnation = incarnation
    self._dismissed: dict[int, int | None] = {}

  def add(self, worker: int, last_known: int | None) -> None:
    """Dismisses a worker.

    Args:
      worker: its index.
      last_known: its incarnation, in case that it does not answer now.
    """
    self._dismissed[worker] = self._incarnation(worker) or last_known

  def __contains__(self, worker: int) -> bool:
    """Whether a worker is dismissed, and has not restarted."""
    if worker not in self._dismissed:
      return False
    found = self._incarnation(worker)
    return found is None or found == self._dismissed[worker]

  def discard(self, worker: int) -> None:
    """Has a worker that has restarted as any other; harmless for others."""
    self._dismissed.pop(worker, None)
