"""Registry of tasks: the incarnation of each that is in use, and its state."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
import math
import threading
import time
from typing import Generic
from typing import TypeVar

from tfps._utils import timeouts

Key = TypeVar('Key', bound=Hashable)


class TaskRegistry(Generic[Key]):
  """Incarnations of tasks that a process uses, and which tasks have changed.

  A task draws an incarnation when it starts. A look compares what each answers
  with the incarnation in use, which only `accept` changes:

  | State     | Its last answer         | Becomes                              |
  | --------- | ----------------------- | ------------------------------------ |
  | new       | none yet                | in use, once it answers              |
  | in use    | the incarnation in use  | silent, restarted                    |
  | silent    | none                    | in use, restarted; left, by `accept` |
  | restarted | another incarnation     | silent; in use, by `accept`          |
  | left      | none, which is accepted | restarted, once it answers           |

  Threads may share it.

  Args:
    known: incarnations in use; None for a task that has left.
    clock: seconds that only go forward.
  """

  def __init__(
    self,
    known: Mapping[Key, int | None] | None = None,
    clock: Callable[[], float] = lambda: time.monotonic(),
  ) -> None:
    self._known = dict(known or {})
    self._clock = clock
    self._silent_since: dict[Key, float] = {}
    self._looked_at = -math.inf
    self._lock = threading.Lock()

  @property
  def known(self) -> dict[Key, int | None]:
    """The incarnations in use; None for tasks that have left."""
    with self._lock:
      return dict(self._known)

  def accept(self, found: Mapping[Key, int | None]) -> None:
    """Uses incarnations from now on.

    Args:
      found: those of some tasks; None for one that has left.
    """
    with self._lock:
      self._known.update(found)

  def look(self, found: Mapping[Key, int | None]) -> set[Key]:
    """Records what tasks answer now.

    Args:
      found: their incarnations; None for a task that does not answer.

    Returns:
      The tasks that have been restarted.
    """
    with self._lock:
      self._looked_at = now = self._clock()
      for task, number in found.items():
        if number is not None:
          self._silent_since.pop(task, None)
          self._known.setdefault(task, number)
        elif self._known.get(task, 0) is not None:
          self._silent_since.setdefault(task, now)
      return {
        task
        for task, number in found.items()
        if number is not None and number != self._known[task]
      }

  def silent(self, secs: float = 0.0) -> set[Key]:
    """Returns the tasks that have been silent for a time, as of the last look.

    Args:
      secs: the shortest time.
    """
    with self._lock:
      return {
        task
        for task, since in self._silent_since.items()
        if self._looked_at - since >= secs
      }

  def forget_silence(self) -> None:
    """Counts the time of tasks that are silent from the next look on."""
    with self._lock:
      self._silent_since.clear()

  def has_changed(self, found: Mapping[Key, int | None]) -> bool:
    """Records what tasks answer; returns whether one is lost or restarted.

    A task that does not answer once may only be slow, and one that has not
    answered long ago may have answered since.

    Args:
      found: as for `look`.
    """
    times = timeouts.current()
    if self._clock() - self._looked_at > times.look_memory_secs:
      self.forget_silence()
    restarted = self.look(found)
    return bool(restarted or self.silent(times.probe_every_secs))
