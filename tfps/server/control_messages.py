"""What tasks that serve ask of the process that trains.

One that is told to end asks to be let go, and waits until all who listen have
done without it, or for as long as it has. A worker of whom nobody knows asks to
be taken in; as it knows nobody either, it asks a ps, who passes it on.
"""

import atexit
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import json
import threading
from typing import ClassVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

_LEAVING = 'leaving'
_JOINING = 'joining'
_MAY_LEAVE = 'may_leave'

Addresses = Mapping[spec_lib.Task, str]


def ask_to_leave(
  task: spec_lib.Task, address: str, clients: Addresses
) -> set[spec_lib.Task]:
  """Asks clients to let a task go; those that could be asked.

  Args:
    task: the one that is to end.
    address: where its server listens, for the answer.
    clients: whom to ask, with their addresses.
  """
  return pass_on(_message(_LEAVING, task, address), clients)


def ask_to_join(task: spec_lib.Task, address: str, servers: Addresses) -> None:
  """Asks the first server that answers to have a task taken in.

  Args:
    task: a worker.
    address: where its server listens.
    servers: the ps, with their addresses.
  """
  message = _message(_JOINING, task, address)
  for server, where in servers.items():
    if _tell(server, where, message):
      return


def is_for_clients(message: str) -> bool:
  """Whether a server is to pass a message on."""
  return _JOINING in json.loads(message)


def pass_on(message: str, clients: Addresses) -> set[spec_lib.Task]:
  """Tells clients; those that could be told."""
  return {
    client for client, where in clients.items() if _tell(client, where, message)
  }


def answered(message: str) -> spec_lib.Task | None:
  """The client that lets this task go, if a message says so."""
  client = json.loads(message).get(_MAY_LEAVE)
  return client and spec_lib.Task(**client)


class Listener:
  """Hears, in a thread, what other tasks ask for, and does it.

  A process has one mailbox, so a new listener stops the last one: that of a
  strategy that was not closed would let tasks go that are in use.

  Args:
    task: of this process, which is connected to its cluster.
    do_without: called with a task; it may leave when that returns.
    take_in: called with a worker and the address where it serves.
  """

  _last: ClassVar['Listener | None'] = None

  def __init__(
    self,
    task: spec_lib.Task,
    do_without: Callable[[spec_lib.Task], object],
    take_in: Callable[[spec_lib.Task, str], object],
  ) -> None:
    last, Listener._last = Listener._last, self
    if last is not None:
      last.stop()
    self._task = task
    self._device = f'/job:{task.job}/task:{task.index}/device:CPU:0'
    self._do_without = do_without
    self._take_in = take_in
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='tfps-requests', daemon=True
    )
    self._thread.start()
    atexit.register(self.stop)

  def stop(self) -> None:
    """Hears no more; twice is harmless."""
    self._stopping.set()
    self._thread.join(timeouts.current().thread_stop_secs)
    atexit.unregister(self.stop)

  def _run(self) -> None:
    while not self._stopping.wait(timeouts.current().listen_every_secs):
      try:
        self._hear(mailbox_lib.take_own(self._device))
      except tf.errors.OpError as error:
        logging.warning('Own mailbox: %s', errors.first_line(error))

  def _hear(self, messages: Iterable[str]) -> None:
    for message in dict.fromkeys(messages):  # who asks twice is heard once
      facts = json.loads(message)
      if _LEAVING in facts:
        self._let_go(spec_lib.Task(**facts[_LEAVING]), facts['at'])
      elif _JOINING in facts:
        self._take_in(spec_lib.Task(**facts[_JOINING]), facts['at'])

  def _let_go(self, task: spec_lib.Task, address: str) -> None:
    logging.warning('%s is about to leave.', task)
    self._do_without(task)
    answer = {_MAY_LEAVE: dataclasses.asdict(self._task)}
    _tell(task, address, json.dumps(answer))


def _message(what: str, task: spec_lib.Task, address: str) -> str:
  return json.dumps({what: dataclasses.asdict(task), 'at': address})


def _tell(task: spec_lib.Task, address: str, message: str) -> bool:
  if not health.is_alive(task, address):
    return False
  try:
    with mailbox_lib.Mailbox(
      task, address, timeout_secs=timeouts.current().call_secs
    ) as mailbox:
      mailbox.put(message)
  except tf.errors.OpError as error:
    logging.warning('%s: %s', task, errors.first_line(error))
    return False
  return True
