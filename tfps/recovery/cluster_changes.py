"""Whether tasks are no longer those that they were, or are silent for long."""

from collections.abc import Callable
from collections.abc import Mapping
import math
import time

from tfps._utils import timeouts


class ClusterChanges:
  """What is seen of tasks at one look after another.

  Args:
    clock: seconds that only go forward.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
    self._clock = clock
    self._silent: set[int] = set()  # at the last look
    self._looked_at = -math.inf

  def are(
    self, found: Mapping[int, int | None], known: Mapping[int, int | None]
  ) -> bool:
    """Whether one has restarted, or is silent at two looks.

    Args:
      found: by index, each task's incarnation; None if it does not answer.
      known: what they were.
    """
    before, looked_at = self._silent, self._looked_at
    changed = {task for task in known if found.get(task) != known[task]}
    self._silent = {task for task in changed if found.get(task) is None}
    self._looked_at = self._clock()
    is_next = self._looked_at - looked_at < timeouts.current().look_memory_secs
    return bool(changed - self._silent or (is_next and self._silent & before))
