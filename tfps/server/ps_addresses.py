"""Where each ps is served: at its own address, or as the guest of another."""

import collections
from collections.abc import Collection
from collections.abc import Mapping
import time

from absl import logging

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import hosted_ps


class PsAddressBook:
  """The addresses of the ps, of which some may be guests of others.

  Args:
    cluster: with the ps and their own addresses.

  Attributes:
    addresses: where each ps is to be found now.
  """

  def __init__(self, cluster: spec_lib.Cluster) -> None:
    self._cluster = cluster
    self._homes = {t: cluster.address(t) for t in cluster.tasks('ps')}
    self._hosts: dict[spec_lib.Task, spec_lib.Task] = {}
    self.addresses = dict(self._homes)
    self._moves: list[spec_lib.Task] = []
    # The incarnations of those that were taken over, if they still answered.
    self._gone: dict[spec_lib.Task, int | None] = {}

  @property
  def moved(self) -> dict[spec_lib.Task, str]:
    """The addresses of those that are guests."""
    return {
      task: address
      for task, address in self.addresses.items()
      if address != self._homes[task]
    }

  def incarnations(self) -> dict[int, int | None]:
    """By index, a number for each ps, which another start has not.

    None where it does not answer.
    """
    found = health.incarnations(self.addresses)
    return {task.index: number for task, number in found.items()}

  def settle(
    self, timeout_secs: float, workers: Collection[spec_lib.Task] = ()
  ) -> None:
    """Returns once each ps answers, at its own address or as a guest.

    Args:
      timeout_secs: how long to wait.
      workers: those that are to answer, too.

    Raises:
      errors.UnreachableError: names each silent task, its address and state.
    """
    deadline = deadlines.after(timeout_secs)
    times = timeouts.current()
    pause, max_pause = times.poll_secs, times.probe_every_secs
    while silent := self._silent(workers):
      if deadlines.is_over(deadline):
        raise errors.UnreachableError(
          health.complaint(silent.values(), timeout_secs)
        )
      if pause == max_pause:  # it is not just starting
        self.follow({task.index for task in silent if task.job == 'ps'})
      time.sleep(pause)
      pause = min(2 * pause, max_pause)

  def replace(
    self, silent: Collection[int], lost_secs: float, after_secs: float
  ) -> None:
    """As `take_over`, but not before somebody may have restarted them.

    Args:
      silent: the ps that do not answer.
      lost_secs: since when.
      after_secs: how long to wait for them; `math.inf` is for ever. Guests,
        whose host was lost, are not waited for.
    """
    if lost_secs >= after_secs or any(t.index in silent for t in self.moved):
      self.take_over(silent)

  def take_over(self, silent: Collection[int]) -> None:
    """Has ps that do not answer served by those that do, as far as possible.

    Calling it again is harmless.
    """
    lost = [task for task in self._homes if task.index in silent]
    # Whose host is lost is looked for at home again.
    self.send_home(set(lost) & set(self.moved))
    hosts = [
      task
      for task in self._homes
      if task not in lost and task not in self.moved
    ]
    if not hosts:
      return
    for status in health.probe_all({task: self._homes[task] for task in lost}):
      # One that is to leave may answer at home for a while.
      self._gone[status.task] = status.incarnation
      self._ask(status.task, hosts)
    deadline = deadlines.after(timeouts.current().failover_secs)
    while not deadlines.is_over(deadline):
      self.follow(silent)
      if all(task in self.moved for task in lost):
        return
      time.sleep(timeouts.current().repair_min_poll_secs)

  def follow(self, silent: Collection[int]) -> None:
    """Goes to where ps that do not answer are guests already."""
    hosts = {
      task: address
      for task, address in self._homes.items()
      if task.index not in silent
    }
    for task in self._homes:
      if task.index in silent:
        self._move(task, hosted_ps.find(task, hosts) or self._homes[task])

  def reconsider(self) -> None:
    """Goes to the other address of whoever answers at two."""
    hosts = {t: a for t, a in self._homes.items() if t not in self.moved}
    for task, home in self._homes.items():
      guest = hosted_ps.find(
        task, {t: a for t, a in hosts.items() if t != task}
      )
      other = guest if self.addresses[task] == home else home
      if other is not None and health.is_alive(task, other):
        self._move(task, other)

  def seek(self, incarnations: Mapping[int, int | None]) -> None:
    """Goes where the ps of these incarnations are, at home or as guests.

    Those that are nowhere are left where they are.
    """
    for status in health.probe_all(self.addresses):
      wanted = incarnations.get(status.task.index)
      if status.incarnation != wanted:
        for address in self._places(status.task):
          if health.probe(status.task, address).incarnation == wanted:
            self._move(status.task, address)

  def forget_moves(self) -> list[spec_lib.Task]:
    """Who has moved since the last call."""
    moves, self._moves = self._moves, []
    return moves

  def back_home(self) -> set[spec_lib.Task]:
    """The guests that have been started at their own addresses again."""
    homes = {task: self._homes[task] for task in self.moved}
    return {
      status.task
      for status in health.probe_all(homes)
      if status.state is health.State.ALIVE
      and status.incarnation != self._gone.get(status.task)
    }

  def send_home(self, tasks: Collection[spec_lib.Task]) -> None:
    """Has guests at their own addresses again."""
    for task in tasks:
      self._hosts.pop(task, None)
      self._move(task, self._homes[task])

  def _places(self, task: spec_lib.Task) -> list[str]:
    """Where a ps may be."""
    others = {t: at for t, at in self._homes.items() if t != task}
    guest = hosted_ps.find(task, others)
    return [self._homes[task], *([] if guest is None else [guest])]

  def _silent(
    self, workers: Collection[spec_lib.Task]
  ) -> dict[spec_lib.Task, health.Status]:
    others = {worker: self._cluster.address(worker) for worker in workers}
    return {
      status.task: status
      for status in health.probe_all({**self.addresses, **others})
      if status.state is not health.State.ALIVE
    }

  def _ask(self, task: spec_lib.Task, hosts: Collection[spec_lib.Task]) -> None:
    load = collections.Counter(self._hosts.values())
    host = self._hosts.get(task)
    if host is None or host not in hosts:
      host = min(hosts, key=lambda candidate: load[candidate])
    self._hosts[task] = host
    try:
      hosted_ps.ask(host, self._homes[host], task)
    except errors.UnreachableError as error:
      logging.warning('%s', error)

  def _move(self, task: spec_lib.Task, address: str) -> None:
    if address != self.addresses[task]:
      logging.warning('%s is at %s now.', task, address)
      self.addresses[task] = address
      self._moves.append(task)
