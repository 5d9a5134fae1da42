"""Hosted tasks: served from another task's process, as their own is lost.

A ps whose machine is lost need not be restarted: another ps starts a second
server in its own process, which is the lost task at a new address. Variables
keep their devices, and functions that were traced with them continue to work.

Clients send the request to the host's mailbox; the host posts the addresses of
its hosted tasks, where clients look them up.
"""

from collections.abc import Callable
from collections.abc import Mapping
import json

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages

Addresses = Mapping[spec_lib.Task, str]


class HostedTasks:
  """Tasks that this process hosts.

  Args:
    start: starts a server for a task and returns its address.
  """

  def __init__(self, start: Callable[[spec_lib.Task], str]) -> None:
    self._start = start
    # Servers cannot be stopped, so tasks are never removed.
    self._addresses: dict[spec_lib.Task, str] = {}

  def host(self, task: spec_lib.Task, mailbox: mailbox_lib.Mailbox) -> None:
    """Hosts a task, and posts its address.

    Args:
      task: the task.
      mailbox: this process' own, where the address is posted.
    """
    if task not in self._addresses:
      try:
        self._addresses[task] = self._start(task)
      except errors.ServerStartError as error:
        logging.error('%s could not be hosted: %s', task, error)
    mailbox.post(_format(self._addresses), mailbox_lib.HOSTED)


def ask(host: spec_lib.Task, address: str, task: spec_lib.Task) -> None:
  """Asks a task to host another one; asking again is harmless.

  Args:
    host: the task that is asked.
    address: where its server listens.
    task: the task to host.

  Raises:
    errors.UnreachableError: the host does not answer.
  """
  status = health.probe(host, address)
  if status.state is not health.State.ALIVE:
    raise errors.UnreachableError(f'{status}: it cannot serve {task}.')
  try:
    with mailbox_lib.Mailbox(address) as mailbox:
      mailbox.put(messages.Host(task).to_json())
  except tf.errors.OpError as error:
    raise errors.UnreachableError(
      f'{host} at {address} could not be asked to serve {task}: '
      f'{errors.first_line(error)}'
    ) from error


def find(task: spec_lib.Task, hosts: Addresses) -> str | None:
  """Returns the address at which another task hosts a task, or None.

  Args:
    task: the task, which must answer there.
    hosts: the addresses of the others. Those that do not answer are skipped.
  """
  for status in health.probe_all(hosts):
    if status.state is health.State.ALIVE:
      address = _posted(status.task, status.address).get(str(task))
      if address is not None and health.is_alive(task, address):
        return address
  return None


def _format(addresses: Addresses) -> str:
  return json.dumps({str(task): at for task, at in sorted(addresses.items())})


def _posted(host: spec_lib.Task, address: str) -> dict[str, str]:
  try:
    with mailbox_lib.Mailbox(address) as mailbox:
      text = mailbox.read(mailbox_lib.HOSTED)
  except tf.errors.OpError as error:
    logging.warning('%s: %s', host, errors.first_line(error))
    return {}
  return dict(json.loads(text)) if text else {}
