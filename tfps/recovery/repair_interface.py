"""Interface through which the failure handler requests a repair."""

from collections.abc import Collection
from collections.abc import Mapping


class Repairs:
  """Actions of a coordinator when a ps is lost; this base does nothing.

  All methods may raise a `tf.errors.OpError` when a task is lost meanwhile.
  """

  def moved(self) -> Mapping[tuple[str, int], str]:
    """Returns addresses of tasks that have moved, by job and index."""
    return {}

  def describe(self, ps: int) -> str:
    """Returns the name of a ps, and its address if it is known."""
    return f'ps:{ps}'

  def check(self, found: Mapping[str, Collection[int]]) -> None:
    """Checks that this process may still use its cluster.

    Called before the runtime is told which tasks are in the cluster.

    Args:
      found: by job, the indices of the tasks that answer.

    Raises:
      errors.ReplacedError: another process has replaced this one.
    """

  def prepare(self) -> None:
    """Prepares an execution, in the thread that waits for it."""

  def relocate(self, ps: set[int], lost_secs: float) -> bool:
    """Looks for other addresses of ps that do not answer.

    Called repeatedly until they do.

    Args:
      ps: their indices.
      lost_secs: for how long they have not answered.

    Returns:
      Whether one has another address now.
    """
    return False

  def begin(self) -> None:
    """Begins a repair; nothing is executed until it ends."""

  def notify(self, kind: str, workers: set[int]) -> None:
    """Reports that workers are 'lost', 'back' or have 'joined'."""

  def rebuild(self, ps: set[int]) -> None:
    """Restores the variables of ps that have restarted.

    Nothing is executed meanwhile. An error ends training.

    Args:
      ps: their indices.
    """
