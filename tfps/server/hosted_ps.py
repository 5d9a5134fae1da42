"""Tasks that are served from another task's process, as their own is gone.

A ps whose host is lost need not be started anywhere: a ps that lives starts a
second server in its own process, which is the lost task under a new address.
Variables keep their devices, and functions that were traced with them go on.

A task that serves takes requests from its mailbox and posts its guests next to
its notice. Clients ask, and find.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import json

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

_TAKE_IN = 'take_in'

Addresses = Mapping[spec_lib.Task, str]


class HostedTasks:
  """The guests in a task's own process.

  Args:
    start: starts a server for a task and returns its address.
  """

  def __init__(self, start: Callable[[spec_lib.Task], str]) -> None:
    self._start = start
    # Servers cannot be stopped: that of a guest who has gone home stays.
    self._addresses: dict[spec_lib.Task, str] = {}

  def hear(self, message: str, mailbox: mailbox_lib.Mailbox) -> bool:
    """Whether a message asks to take in a guest, who then is there.

    Args:
      message: from the mailbox.
      mailbox: this task's own, where its guests are posted.
    """
    facts = json.loads(message)
    if _TAKE_IN not in facts:
      return False
    self._take_in(spec_lib.Task(**facts[_TAKE_IN]))
    found = {str(task): at for task, at in sorted(self._addresses.items())}
    mailbox.post(json.dumps(found), mailbox_lib.GUESTS)
    return True

  def _take_in(self, task: spec_lib.Task) -> None:
    if task not in self._addresses:
      try:
        self._addresses[task] = self._start(task)
      except errors.ServerStartError as error:
        logging.error('%s could not be taken in: %s', task, error)


def ask(host: spec_lib.Task, address: str, task: spec_lib.Task) -> None:
  """Asks a task to serve another one, too; asking again is harmless.

  Args:
    host: who is asked.
    address: where its server listens.
    task: the task to serve.

  Raises:
    errors.UnreachableError: it does not answer.
  """
  status = health.probe(host, address)
  if status.state is not health.State.ALIVE:
    raise errors.UnreachableError(f'{status}: it cannot serve {task}.')
  request = {_TAKE_IN: dataclasses.asdict(task)}
  try:
    with mailbox_lib.Mailbox(
      host, address, timeout_secs=timeouts.current().call_secs
    ) as mailbox:
      mailbox.put(json.dumps(request))
  except tf.errors.OpError as error:
    raise errors.UnreachableError(
      f'{host} at {address} could not be asked to serve {task}: '
      f'{errors.first_line(error)}'
    ) from error


def find(task: spec_lib.Task, hosts: Addresses) -> str | None:
  """Where a task is served as a guest, if it is.

  Args:
    task: the guest.
    hosts: tasks that may have taken it in, with their addresses. Those that do
      not answer are passed over.
  """
  for status in health.probe_all(hosts):
    if status.state is health.State.ALIVE:
      address = _posted(status.task, status.address).get(str(task))
      if address is not None and health.is_alive(task, address):
        return address
  return None


def _posted(host: spec_lib.Task, address: str) -> dict[str, str]:
  try:
    with mailbox_lib.Mailbox(
      host, address, timeout_secs=timeouts.current().call_secs
    ) as mailbox:
      text = mailbox.read(mailbox_lib.GUESTS)
  except tf.errors.OpError as error:
    logging.warning('%s: %s', host, errors.first_line(error))
    return {}
  return dict(json.loads(text)) if text else {}
