"""Notices of ps that have come back at another address than before.

Only its own cluster specification has the new address. So the ps posts it on
the servers of all other tasks that it knows: ps, workers and chief. Clients
look for it on their own server and on others', so that one living task
suffices. They post it on their own servers, too, for tasks that restart.
"""

from collections.abc import Collection
from collections.abc import Mapping
import random

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import strategy as compat
from tfps._utils import threads
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

# Tasks that are told or asked at once.
_AT_ONCE = 8

Addresses = Mapping[spec_lib.Task, str]


def post(task: spec_lib.Task, address: str, others: Addresses) -> None:
  """Posts the own address of a ps on other tasks' servers.

  Args:
    task: the ps.
    address: where its server listens.
    others: the addresses of the others. Those that do not answer are skipped.
  """

  def tell(other: tuple[spec_lib.Task, str]) -> None:
    if health.is_alive(*other):
      try:
        with mailbox_lib.Mailbox(other[1]) as mailbox:
          mailbox.post(address, _board(task))
      except tf.errors.OpError as error:
        logging.warning('%s: %s', other[0], errors.first_line(error))

  threads.map_all('tfps-home', tell, others.items(), at_once=_AT_ONCE)


class Homes:
  """Finds the addresses that ps have posted, and posts them again.

  Args:
    cluster: lists the tasks to ask, and this process' own.
  """

  def __init__(self, cluster: spec_lib.Cluster) -> None:
    self._own = cluster.task
    self._others = {
      task: cluster.address(task)
      for task in cluster.tasks()
      if task.job != 'ps' and task != self._own
    }
    self._own_address: str | None = None
    if self._own is not None and self._own in cluster.tasks():
      self._own_address = cluster.address(self._own)

  def find(
    self, tasks: Collection[spec_lib.Task], ps: Addresses
  ) -> dict[spec_lib.Task, str]:
    """Returns posted addresses at which ps answer.

    The own server is asked first, then the given ps and some of the other
    tasks, which are others each time.

    Args:
      tasks: the ps to find.
      ps: the addresses of ps to ask.
    """
    found = {task: at for task in tasks if (at := self._find_here(task))}
    missing = [task for task in tasks if task not in found]
    if missing:
      others = random.sample(
        list(self._others.items()), min(_AT_ONCE, len(self._others))
      )
      for status in health.probe_all({**ps, **dict(others)}):
        if missing and status.state is health.State.ALIVE:
          found |= _read(status.task, status.address, missing)
          missing = [task for task in missing if task not in found]
    return found

  def keep(self, homes: Addresses) -> None:
    """Posts addresses on this process' own server, if it has one."""
    if (device := self._device()) is not None:
      for task, address in homes.items():
        mailbox_lib.post_own(device, address, _board(task))

  def _find_here(self, task: spec_lib.Task) -> str | None:
    """Returns an address posted on this process' own server, if it has one."""
    if (device := self._device()) is None:
      return None
    return _checked(task, mailbox_lib.read_own(device, _board(task)))

  def _device(self) -> str | None:
    """Returns a device of the own server if others know it and it runs."""
    own, address = self._own, self._own_address
    if own is None or address is None:
      return None
    if not compat.is_own_address(own.job, address, index=own.index):
      return None
    return f'/job:{own.job}/task:{own.index}/device:CPU:0'


def _read(
  other: spec_lib.Task, address: str, tasks: Collection[spec_lib.Task]
) -> dict[spec_lib.Task, str]:
  """Returns the addresses of ps that are posted on a task's server."""
  try:
    with mailbox_lib.Mailbox(address) as mailbox:
      posted = {task: mailbox.read(_board(task)) for task in tasks}
  except tf.errors.OpError as error:
    logging.warning('%s: %s', other, errors.first_line(error))
    return {}
  found = {task: _checked(task, at) for task, at in posted.items()}
  return {task: at for task, at in found.items() if at is not None}


def _checked(task: spec_lib.Task, address: str | None) -> str | None:
  """Returns an address if the ps answers there; it may have moved since."""
  return address if address and health.is_alive(task, address) else None


def _board(task: spec_lib.Task) -> str:
  return f'tfps_home_{task.job}_{task.index}'
