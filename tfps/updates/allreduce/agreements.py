"""Agreement of an elastic group on the next steps on batches of a queue.

A queue may have no batches for some workers while others read its last splits.
So the workers add up vectors that say how many batches each has. Those that
have some do the same number of steps among themselves; the others wait, then
receive the resulting state.
"""

import dataclasses

import numpy as np

_NUM_FLAGS = 2


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Next steps of all workers.

  Attributes:
    number: number of steps of each worker that has batches; 0 if none has.
    members: indices of these workers in the collective group.
    finished: whether none has batches, and one has seen that no work is left.
    is_change_requested: whether a worker requests a rendezvous.
    is_partial: whether some workers have batches and others have none.
  """

  number: int
  members: tuple[int, ...]
  finished: bool
  is_change_requested: bool
  is_partial: bool


def facts(
  ready: int,
  *,
  finished: bool,
  requests_change: bool,
  index: int,
  num_workers: int,
) -> np.ndarray:
  """Returns the vector that a worker contributes, int32 [num_workers + 2].

  Args:
    ready: number of batches that the worker has.
    finished: whether it has seen that no work is left.
    requests_change: whether it knows of a request for a rendezvous.
    index: its index in the collective group.
    num_workers: size of the collective group.
  """
  found = np.zeros([num_workers + _NUM_FLAGS], np.int32)
  found[index] = ready
  found[-_NUM_FLAGS:] = finished, requests_change
  return found


def of(total: np.ndarray) -> Agreement:
  """Returns the agreement that the sum of all vectors means."""
  ready, (finished, requests_change) = total[:-_NUM_FLAGS], total[-_NUM_FLAGS:]
  (members,) = np.nonzero(ready)
  number = int(ready[members].min()) if len(members) else 0
  return Agreement(
    number,
    tuple(members.tolist()),
    finished=bool(finished) and not number,
    is_change_requested=bool(requests_change),
    is_partial=0 < len(members) < len(ready),
  )
