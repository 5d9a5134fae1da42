"""The workers of one host, of whom one pushes the gradients of all.

That is the one with the lowest number that answers. Each has a post, to which
the others come, and looks for one of a lower number before every turn. Where
nobody answers in time, or who pushes is lost, each pushes for itself: the ps
know whose gradients they have, and take none twice.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
from typing import Any

from absl import logging
import numpy as np

from tfps.cluster import spec as spec_lib
from tfps.cluster import topology
from tfps.hosts import links as links_lib
from tfps.hosts import messages
from tfps.hosts import posts


class Group:
  """One worker's part.

  Args:
    job: tells the groups of several jobs apart.
    worker: the number of this one.
    members: all of this host, this one among them: names by numbers.
    timeout_secs: how long to wait for the one that pushes. It waits half as
      long for each of the others.
  """

  def __init__(
    self,
    job: str,
    worker: int,
    members: Mapping[int, str],
    *,
    timeout_secs: float,
  ) -> None:
    self.worker = worker
    self.members = dict(sorted(members.items()))
    self._timeout_secs = timeout_secs
    self._post = posts.Post(messages.address(job, worker), self.members)
    self._links = {
      other: links_lib.Link(messages.address(job, other), worker)
      for other in self.members
      if other < worker
    }

  def begin(self) -> None:
    """Looks for the others, and waits for nobody."""
    self._post.open()
    self._pusher()

  def share(
    self,
    turn: messages.Turn,
    arrays: Sequence[np.ndarray],
    are_rows: Sequence[bool],
  ) -> tuple[list[np.ndarray], list[int]]:
    """Adds arrays up with those of the others, or has another one do it.

    Args:
      turn: for which they are.
      arrays: of this worker.
      are_rows: of each, whether those of several workers are to be kept side by
        side, and are not added.

    Returns:
      What this worker is to push, and the numbers of the workers whose it is.
      If there are none, another one has pushed it. Otherwise `tell` is to be
      called once it is pushed.
    """
    self._post.open()
    pusher = self._pusher()
    if pusher is not None:
      self._post.pass_over(turn)
      if self._has_pushed(pusher, turn, arrays):
        return [array[:0] if array.ndim else array for array in arrays], []
      return list(arrays), [self.worker]
    # Before those who have offered something give up.
    given = self._post.collect(turn, self._timeout_secs / 2)
    wanted = _kinds(arrays, are_rows)
    if any(_kinds(each.arrays, are_rows) != wanted for each in given):
      self._post.answer(is_taken=False)
      return list(arrays), [self.worker]
    sums = [
      _joined(each, is_row)
      for each, is_row in zip(
        zip(arrays, *(each.arrays for each in given), strict=True),
        are_rows,
        strict=True,
      )
    ]
    return sums, [self.worker, *(each.worker for each in given)]

  def tell(self, *, is_pushed: bool) -> None:
    """Says whether the ps have what was shared."""
    self._post.answer(is_taken=is_pushed)

  def pass_over(self, turn: messages.Turn) -> None:
    """Has nobody wait for this worker in a turn, or in one before it."""
    self._post.pass_over(turn)

  def leave(self) -> None:
    """Has nobody of this host wait for this worker until it shares again."""
    self._post.close()
    for link in self._links.values():
      link.close()

  def _pusher(self) -> int | None:
    """Another worker that is to push, if there is one."""
    found: int | None = None
    for other, link in self._links.items():
      if found is not None:
        link.close()  # so that it does not wait for this one
      elif link.is_ready():
        found = other
    return found

  def _has_pushed(
    self, pusher: int, turn: messages.Turn, arrays: Sequence[np.ndarray]
  ) -> bool:
    try:
      return self._links[pusher].offer(turn, arrays, self._timeout_secs)
    except TimeoutError:
      logging.warning(
        '%s, which pushes the gradients of this host, has not done so within '
        '%.0f seconds; those of %s are pushed without it.',
        self.members[pusher],
        self._timeout_secs,
        self.members[self.worker],
      )
      return False


def of(
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  tasks: Sequence[spec_lib.Task],
  *,
  timeout_secs: float,
) -> Group:
  """The group of a task, among those that have the same host by their address.

  Args:
    cluster: of the job, whose ps tell it from others.
    task: which.
    tasks: all that train; their order gives them numbers.
    timeout_secs: as for `Group`.
  """
  hosts = [topology.host_of_address(cluster.address(each)) for each in tasks]
  own = tasks.index(task)
  return Group(
    job_of(cluster),
    own,
    {i: str(tasks[i]) for i, host in enumerate(hosts) if host == hosts[own]},
    timeout_secs=timeout_secs,
  )


def job_of(cluster: spec_lib.Cluster) -> str:
  """What tells a job from all others of a host: where its ps are."""
  ps = [cluster.address(task) for task in cluster.tasks('ps')]
  return hashlib.sha256(repr(ps).encode()).hexdigest()[:16]


def _joined(arrays: Sequence[np.ndarray], is_row: bool) -> np.ndarray:
  if is_row or len(arrays) == 1:
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
  total = arrays[0] + arrays[1]
  for array in arrays[2:]:
    total += array
  return np.asarray(total, arrays[0].dtype)


def _kinds(arrays: Sequence[np.ndarray], are_rows: Sequence[bool]) -> list[Any]:
  """What is alike in all workers, of whom each may have other rows."""
  return [
    (array.dtype, array.shape[1:] if is_row else array.shape)
    for array, is_row in zip(arrays, are_rows, strict=False)
  ] + [len(arrays)]
