"""Whether tasks are no longer those that they were, or are silent for long."""

from collections.abc import Mapping


class Changes:
  """What is seen of tasks at one look after another."""

  def __init__(self) -> None:
    self._silent: set[int] = set()  # at the last look

  def are(
    self, found: Mapping[int, int | None], known: Mapping[int, int | None]
  ) -> bool:
    """Whether one has restarted, or is silent for the second time.

    Args:
      found: by index, each task's incarnation; None if it does not answer.
      known: what they were.
    """
    changed = {i: found.get(i) for i in known if found.get(i) != known[i]}
    before, self._silent = (
      self._silent,
      {i for i, incarnation in changed.items() if incarnation is None},
    )
    return bool(changed.keys() - self._silent or self._silent & before)
