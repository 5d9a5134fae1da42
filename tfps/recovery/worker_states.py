"""Which workers are away, and which have lost what they held."""

from collections.abc import Collection
from collections.abc import Mapping


class WorkerStates:
  """Knows of each worker, by its index, how it is with it.

  It is *waited for* where a thread has found it lost, *left out* where the
  runtime does not know it, and *bare* where it has lost what it held, which its
  thread may not know.

  Attributes:
    incarnations: of those that were found last; None of one that is silent.
  """

  def __init__(self) -> None:
    self.incarnations: dict[int, int | None] = {}
    self._waited_for: set[int] = set()
    self._left_out: set[int] = set()
    self._bare: set[int] = set()

  def away(self) -> set[int]:
    """Those that are waited for or left out."""
    return self._waited_for | self._left_out

  def is_bare(self, worker: int) -> bool:
    """Whether what it held is to be made anew."""
    return worker in self._bare

  def is_left_out(self, worker: int) -> bool:
    """Whether the runtime does not know it."""
    return worker in self._left_out

  def wait_for(self, worker: int) -> None:
    """A thread has found it lost."""
    self._waited_for.add(worker)

  def leave_out(self, worker: int) -> None:
    """The runtime is yet to be told of it."""
    self._left_out.add(worker)

  def note(self, found: Mapping[int, int | None]) -> tuple[set[int], set[int]]:
    """Takes note of what was found, which the runtime is then told.

    Returns:
      Those that are silent, and those of whose loss nobody knew.
    """
    silent = {worker for worker, number in found.items() if number is None}
    known = self.incarnations
    restarted = {w for w in found if found[w] != known.get(w, found[w])}
    unnoticed = (silent | restarted) - self.away()
    self._bare |= silent | restarted
    self._left_out |= silent
    self.incarnations = dict(found)
    return silent, unnoticed

  def note_told(self, left_out: Collection[int]) -> None:
    """The runtime was told of all but these."""
    self._left_out = set(left_out)

  def take_back(self, workers: Collection[int]) -> None:
    """They are waited for no more."""
    self._waited_for -= set(workers)

  def note_filled(self, worker: int) -> None:
    """What it held is being made anew."""
    self._bare.discard(worker)
