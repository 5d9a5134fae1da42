"""What a crew agrees on before steps on batches of a queue.

A queue may have nothing for some workers while others are at its last splits.
So each says how many batches it has, in a vector that all add up. Those who
have some do the same number of steps, among themselves; the others wait, and
then get what has come of it.
"""

import dataclasses

import numpy as np

_NUM_FLAGS = 2


@dataclasses.dataclass(frozen=True)
class Agreement:
  """What all do next.

  Attributes:
    number: how many steps those do who have batches; 0 if nobody has any.
    members: who they are, by their index in the ring.
    finished: whether nobody has any, and somebody has seen that all is done.
    is_asked_for: whether somebody asks for another crew.
    is_partial: whether some are left who have none.
  """

  number: int
  members: tuple[int, ...]
  finished: bool
  is_asked_for: bool
  is_partial: bool


def facts(
  ready: int, *, finished: bool, asks: bool, index: int, num_workers: int
) -> np.ndarray:
  """What one says to the others.

  Args:
    ready: how many batches it has.
    finished: whether it has seen that all is done.
    asks: whether it knows of somebody who asks for another crew.
    index: its own, in the ring.
    num_workers: how many are in the ring.
  """
  found = np.zeros([num_workers + _NUM_FLAGS], np.int32)
  found[index] = ready
  found[-_NUM_FLAGS:] = finished, asks
  return found


def of(total: np.ndarray) -> Agreement:
  """What follows from the sum of what all have said."""
  ready, (finished, asks) = total[:-_NUM_FLAGS], total[-_NUM_FLAGS:]
  (members,) = np.nonzero(ready)
  number = int(ready[members].min()) if len(members) else 0
  return Agreement(
    number,
    tuple(members.tolist()),
    finished=bool(finished) and not number,
    is_asked_for=bool(asks),
    is_partial=0 < len(members) < len(ready),
  )
