"""The other workers of a group, as their entries and servers tell of them."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import time
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import collectives as compat
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.server import health
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import notices as notices_lib


def enable(
  peers: Sequence[group_monitor.Peer],
  own: int,
  members: Sequence[int],
  config: Any,
) -> None:
  """Enables collectives among some workers; the first call starts the server.

  Args:
    peers: all workers.
    own: number of this worker.
    members: numbers of those that take part.
    config: `ConfigProto` of the server.

  Raises:
    tf.errors.OpError: the server could not be started.
  """
  tasks = [peers[i].task for i in members]
  compat.enable(
    {
      (peers[i].task.job, peers[i].task.index): peers[i].address
      for i in members
    },
    peers[own].task.job,
    peers[own].task.index,
    leader=(tasks[0].job, tasks[0].index),
    config=config,
  )


# Phases of members that may need what another one has to send: who is ready
# copies the variables.
_ACTIVE = (generations.READY, generations.RUNNING)


class Others:
  """The other workers of this worker's group.

  Args:
    peers: all workers; the first one leads.
    own: number of this worker.
    notices: has their entries.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    own: int,
    notices: notices_lib.Notices,
  ) -> None:
    self._peers = peers
    self._own = own
    self._notices = notices

  def are_about_to_join(self, members: Collection[int]) -> bool:
    """Returns whether workers that are no members live, and come soon.

    Args:
      members: numbers of the members.
    """
    return bool(
      self._alive(
        lambda i, entry: (
          i not in members
          and (entry.phase == generations.WAITING or entry.is_aside)
        )
      )
    )

  def wait_until_at(
    self, members: Collection[int], place: int, secs: float
  ) -> None:
    """Waits until members have done as many steps, or do none any more.

    Args:
      members: their numbers.
      place: the number of steps.
      secs: how long to wait.
    """
    deadline = deadlines.after(secs)
    while not deadlines.is_over(deadline):
      entries = self._entries()
      if all(
        entries[i].place >= place
        for i in members
        if i in entries and entries[i].phase in _ACTIVE
      ):
        return
      time.sleep(timeouts.current().poll_secs)

  def wait_until_left(self, secs: float) -> None:
    """Waits until no other worker that lives is in the group, or comes soon.

    Args:
      secs: how long to wait.
    """
    deadline = deadlines.after(secs)
    while not deadlines.is_over(deadline) and self._alive(
      lambda i, entry: entry.phase != generations.LEFT or entry.is_aside
    ):
      time.sleep(timeouts.current().probe_every_secs)

  def missing(self) -> str:
    """Returns the names and states of those for which this worker waits."""
    try:
      state = self._notices.state()
      known = self._notices.entries(len(self._peers))
    except tf.errors.OpError:
      return f'{self._peers[0].task}, which leads them and does not answer'
    missing = generations.missing_workers(state, known, (), len(self._peers))
    statuses = health.probe_all(
      {
        self._peers[i].task: self._peers[i].address
        for i in sorted(missing - {self._own})
      }
    )
    return ', '.join(map(str, statuses)) or 'the decision of the first worker'

  def _alive(
    self, condition: Callable[[int, generations.Entry], bool]
  ) -> Collection[object]:
    """Returns the tasks of a kind that answer, or may thaw."""
    return health.may_be_alive(
      {
        self._peers[i].task: self._peers[i].address
        for i, entry in self._entries().items()
        if i != self._own and condition(i, entry)
      }
    )

  def _entries(self) -> dict[int, generations.Entry]:
    """Returns all entries; none if the leader does not answer."""
    try:
      return self._notices.entries(len(self._peers))
    except tf.errors.OpError as error:
      logging.warning('Group of workers: %s', errors.first_line(error))
      return {}
