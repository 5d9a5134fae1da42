"""What mends the loss of tasks, for who finds it."""

from collections.abc import Collection
from collections.abc import Mapping


class Repairs:
  """What a coordinator does so that its ps may be lost; by itself, nothing.

  All methods may raise a `tf.errors.OpError` when a task is lost meanwhile.
  """

  def moved(self) -> Mapping[tuple[str, int], str]:
    """By job and index, the tasks that are not at their first address."""
    return {}

  def check(self, found: Mapping[str, Collection[int]]) -> None:
    """Called before the cluster is told who is in it.

    Args:
      found: by job, the tasks that answer.

    Raises:
      errors.ReplacedError: this process is not to be in it any more.
    """

  def prepare(self) -> None:
    """Called before each execution, by the thread that waits for it."""

  def replace(self, ps: set[int], lost_secs: float) -> bool:
    """May find these ps, which do not answer, another address.

    Called now and then until they do.

    Args:
      ps: their indices.
      lost_secs: since when they have not answered.

    Returns:
      Whether one has another address now.
    """
    return False

  def begin(self) -> None:
    """Called once before a repair; until its end nothing is executed."""

  def notice(self, kind: str, workers: set[int]) -> None:
    """Called when workers are 'lost', and when they are 'back'."""

  def rebuild(self, ps: set[int]) -> None:
    """Gives these ps, which have restarted, what was lost.

    Nothing is executed meanwhile. An error ends training.
    """
