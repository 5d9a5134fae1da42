"""Address of each ps: its own, or that of another ps which hosts it."""

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import time

from absl import logging

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import homes as homes_lib
from tfps.server import hosted_ps

Addresses = Mapping[spec_lib.Task, str]


class PsAddressBook:
  """Current addresses of the ps, with failover to other ps.

  A lost ps fails over to another ps, which hosts it (`hosted_ps`), and fails
  back once it has been restarted at its own address. This may be another one
  than before, which the other tasks then know.

  Args:
    cluster: lists the tasks and their own addresses.

  Attributes:
    addresses: the current address of each ps.
  """

  def __init__(self, cluster: spec_lib.Cluster) -> None:
    self._cluster = cluster
    self._listed = {t: cluster.address(t) for t in cluster.tasks('ps')}
    self._homes = dict(self._listed)
    self._posted = homes_lib.Homes(cluster)
    self._hosts: dict[spec_lib.Task, spec_lib.Task] = {}
    self.addresses = dict(self._homes)
    self._moves: list[spec_lib.Task] = []
    self._next_look = 0.0
    # The incarnations of ps that are to end, and may still answer for a while.
    self._gone: dict[spec_lib.Task, int | None] = {}

  @property
  def moved(self) -> dict[spec_lib.Task, str]:
    """The addresses of the ps that are not where the cluster lists them."""
    return _differing(self.addresses, self._listed)

  @property
  def hosted(self) -> dict[spec_lib.Task, str]:
    """The addresses of the ps that other ps host."""
    return _differing(self.addresses, self._homes)

  @property
  def new_homes(self) -> dict[spec_lib.Task, str]:
    """The own addresses of ps that have come back elsewhere than listed."""
    return _differing(self._homes, self._listed)

  def describe(self, index: int) -> str:
    """Returns the name of a ps and the address at which it was last."""
    task = spec_lib.Task('ps', index)
    return f'{task} at {self.addresses[task]}'

  def incarnations(self) -> dict[int, int | None]:
    """Returns each ps' incarnation by index; None if it does not answer."""
    found = health.incarnations(self.addresses)
    return {task.index: number for task, number in found.items()}

  def wait_until_served(
    self, timeout_secs: float, workers: Collection[spec_lib.Task] = ()
  ) -> None:
    """Waits until each ps answers, at its own address or hosted.

    Args:
      timeout_secs: how long to wait.
      workers: further tasks that must answer.

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
      if pause == max_pause:  # the ps are not just starting
        self.follow_failover({t.index for t in silent if t.job == 'ps'})
      time.sleep(pause)
      pause = min(2 * pause, max_pause)

  def fail_over_if_due(
    self, silent: Collection[int], lost_secs: float, after_secs: float
  ) -> None:
    """Fails ps over, unless they may still be restarted.

    Args:
      silent: the indices of the ps that do not answer.
      lost_secs: for how long they have not answered.
      after_secs: how long to wait for their restart; may be `math.inf`. If one
        of them was hosted, its host is lost, and there is no wait.
    """
    silent = set(silent) - self._follow_homes(silent)
    were_hosted = any(task.index in silent for task in self.hosted)
    silent -= self._follow_restarts(silent)
    if silent and (lost_secs >= after_secs or were_hosted):
      self._fail_over(silent)

  def leave(self, leaving: Collection[int]) -> bool:
    """Switches from ps that are about to end, for them and those they host.

    Args:
      leaving: the indices of the ps.

    Returns:
      False if one that could be hosted is not.
    """
    homes = {t: at for t, at in self._homes.items() if t.index in leaving}
    for status in health.probe_all(homes):
      self._gone[status.task] = status.incarnation
    guests = {
      task
      for task, host in self._hosts.items()
      if host.index in leaving and task in self.hosted
    }
    back = self._restarted(guests)
    self.fail_back(back)
    return self._fail_over({*leaving, *(t.index for t in guests - back)})

  def follow_failover(self, silent: Collection[int]) -> None:
    """Switches to the addresses of ps that are hosted, or back elsewhere.

    Args:
      silent: the indices of the ps that do not answer.
    """
    silent = set(silent) - self._follow_homes(silent)
    hosts = {
      task: address
      for task, address in self._homes.items()
      if task.index not in silent
    }
    for task in self._homes:
      if task.index in silent:
        self._move(task, hosted_ps.find(task, hosts) or self._homes[task])

  def reconsider(self) -> None:
    """Switches to the other address of each ps that answers at two."""
    hosts = {t: a for t, a in self._homes.items() if t not in self.hosted}
    for task, home in self._homes.items():
      hosted = hosted_ps.find(
        task, {t: a for t, a in hosts.items() if t != task}
      )
      other = hosted if self.addresses[task] == home else home
      if other is not None and health.is_alive(task, other):
        self._move(task, other)

  def locate(self, incarnations: Mapping[int, int | None]) -> None:
    """Switches to the addresses at which ps have given incarnations.

    Args:
      incarnations: by index. The address of a ps that has its incarnation
        nowhere is kept.
    """
    for status in health.probe_all(self.addresses):
      wanted = incarnations.get(status.task.index)
      if status.incarnation != wanted:
        self._find_homes([status.task])
        for address in self._places(status.task):
          if health.probe(status.task, address).incarnation == wanted:
            self._move(status.task, address)

  def keep_homes(self) -> None:
    """Posts new own addresses of ps on this process' server, for others."""
    self._posted.keep(self.new_homes)

  def pop_moves(self) -> list[spec_lib.Task]:
    """Returns the ps whose addresses changed since the last call."""
    moves, self._moves = self._moves, []
    return moves

  def ready_to_fail_back(self) -> set[spec_lib.Task]:
    """Returns hosted ps that were restarted at their own addresses."""
    self._find_homes(self.hosted)
    return self._restarted(self.hosted)

  def fail_back(self, tasks: Collection[spec_lib.Task]) -> None:
    """Switches hosted ps to their own addresses."""
    for task in tasks:
      self._hosts.pop(task, None)
      self._move(task, self._homes[task])

  def _fail_over(self, silent: Collection[int]) -> bool:
    """Lets ps that answer host those that do not, as far as possible.

    Repeated calls are harmless.

    Args:
      silent: the indices of the ps that do not answer.

    Returns:
      False if one that could be hosted is not.
    """
    lost = [task for task in self._homes if task.index in silent]
    # If the hosting ps is lost, too, fall back to the ps' own address.
    self.fail_back(set(lost) & set(self.hosted))
    hosts = [
      task
      for task in self._homes
      if task not in lost and task not in self.hosted
    ]
    if not hosts:
      return len(lost) == len(self._homes)
    for task in lost:
      self._request_host(task, hosts)
    deadline = deadlines.after(timeouts.current().failover_secs)
    while not deadlines.is_over(deadline):
      self.follow_failover(silent)
      if all(task in self.hosted for task in lost):
        return True
      time.sleep(timeouts.current().repair_min_poll_secs)
    return False

  def _follow_homes(self, silent: Collection[int]) -> set[int]:
    """Switches to new own addresses of silent ps; returns these ps."""
    tasks = [task for task in self._homes if task.index in silent]
    found = self._find_homes(tasks)
    self.fail_back(found)
    return {task.index for task in found}

  def _follow_restarts(self, silent: Collection[int]) -> set[int]:
    """Switches to the own addresses of restarted ps; returns these ps."""
    found = self._restarted(t for t in self._homes if t.index in silent)
    self.fail_back(found)
    return {task.index for task in found}

  def _restarted(self, tasks: Iterable[spec_lib.Task]) -> set[spec_lib.Task]:
    """Returns those that answer at their own addresses and are not to end."""
    return {
      status.task
      for status in health.probe_all({t: self._homes[t] for t in tasks})
      if status.state is health.State.ALIVE
      and status.incarnation != self._gone.get(status.task)
    }

  def _find_homes(self, tasks: Collection[spec_lib.Task]) -> set[spec_lib.Task]:
    """Looks for ps that have come back at a new address; returns them.

    It does not look more often than necessary, as it asks many tasks.
    """
    found: set[spec_lib.Task] = set()
    if not tasks or time.monotonic() < self._next_look:
      return found
    self._next_look = time.monotonic() + timeouts.current().probe_every_secs
    others = {t: at for t, at in self._homes.items() if t not in tasks}
    for task, home in self._posted.find(tasks, others).items():
      if home != self._homes[task]:
        logging.warning('%s has come back at %s.', task, home)
        self._homes[task] = home
        found.add(task)
    if found:
      self.keep_homes()
    return found

  def _places(self, task: spec_lib.Task) -> list[str]:
    """Returns the possible addresses of a ps."""
    others = {t: at for t, at in self._homes.items() if t != task}
    hosted = hosted_ps.find(task, others)
    return [self._homes[task], *([] if hosted is None else [hosted])]

  def _silent(
    self, workers: Collection[spec_lib.Task]
  ) -> dict[spec_lib.Task, health.Status]:
    others = {worker: self._cluster.address(worker) for worker in workers}
    return {
      status.task: status
      for status in health.probe_all({**self.addresses, **others})
      if status.state is not health.State.ALIVE
    }

  def _request_host(
    self, task: spec_lib.Task, hosts: Collection[spec_lib.Task]
  ) -> None:
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


def _differing(
  addresses: Addresses, others: Addresses
) -> dict[spec_lib.Task, str]:
  return {t: at for t, at in addresses.items() if at != others[t]}
