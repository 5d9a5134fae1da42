"""Who does steps next, where there may be no batches for some workers."""

from typing import NamedTuple


class StepDecision(NamedTuple):
  """What a worker is to do, and what others do meanwhile.

  Attributes:
    number: how many steps it does.
    finished: whether there is nothing left to do.
    is_idle: whether nobody does any steps.
    is_partial: whether some do none, who get what comes of these once all
      settle. Until then no batch counts.
  """

  number: int
  finished: bool
  is_idle: bool
  is_partial: bool = False


def alone(ready: int, *, finished: bool) -> StepDecision:
  """That of a worker that goes by itself."""
  return StepDecision(ready, finished, is_idle=not ready)
