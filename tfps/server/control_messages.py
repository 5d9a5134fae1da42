"""Requests of serving tasks to the processes that train.

A task that was told to end asks its clients to release it (`Leaving`), and
waits, up to its grace period, until each has answered (`MayLeave`). A worker
that no client knows asks to be admitted (`Joining`); as it knows no client
either, it asks a ps, which forwards the request.
"""

import atexit
from collections.abc import Callable
from collections.abc import Mapping
import threading
from typing import ClassVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages
from tfps.server import observation

Addresses = Mapping[spec_lib.Task, str]


def ask_to_leave(
  task: spec_lib.Task, address: str, clients: Addresses
) -> set[spec_lib.Task]:
  """Asks clients to release a task that is about to end.

  Args:
    task: the task.
    address: where its server listens, for the answer.
    clients: the addresses of the clients.

  Returns:
    The clients that got the request.
  """
  return tell_all(messages.Leaving(task, address), clients)


def ask_to_join(task: spec_lib.Task, address: str, servers: Addresses) -> None:
  """Asks for a worker's admission, through the first ps that answers.

  Args:
    task: the worker.
    address: where its server listens.
    servers: the addresses of the ps.
  """
  message = messages.Joining(task, address)
  for server, where in servers.items():
    if _tell(server, where, message):
      return


def tell_all(
  message: messages.Message, clients: Addresses
) -> set[spec_lib.Task]:
  """Sends a message to clients; returns those that got it."""
  return {
    client for client, where in clients.items() if _tell(client, where, message)
  }


class Listener:
  """Executes, in a thread, requests of other tasks to this process.

  A process has one mailbox, so a new listener stops the last one: the listener
  of a strategy that was not closed would release tasks that are in use.

  Args:
    task: of this process, which is connected to its cluster.
    release: called with a task, which may end once this returns; None if
      tasks do not ask for it.
    admit: called with a worker and the address of its server, likewise.
  """

  _last: ClassVar['Listener | None'] = None

  def __init__(
    self,
    task: spec_lib.Task,
    release: Callable[[spec_lib.Task], object] | None = None,
    admit: Callable[[spec_lib.Task, str], object] | None = None,
  ) -> None:
    last, Listener._last = Listener._last, self
    if last is not None:
      last.stop()
    self._task = task
    self._device = f'/job:{task.job}/task:{task.index}/device:CPU:0'
    self._release = release or (lambda task: None)
    self._admit = admit or (lambda task, address: None)
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='tfps-requests', daemon=True
    )
    self._thread.start()
    atexit.register(self.stop)

  def stop(self) -> None:
    """Ends the thread; stopping twice is harmless."""
    self._stopping.set()
    self._thread.join(timeouts.current().thread_stop_secs)
    atexit.unregister(self.stop)

  def _run(self) -> None:
    handlers: messages.Handlers = {
      messages.Leaving: self._release_and_answer,
      messages.Joining: lambda joining: self._admit(
        joining.task, joining.address
      ),
      messages.Observe: lambda request: mailbox_lib.post_own(
        self._device, *observation.answer(request)
      ),
    }
    while not self._stopping.wait(timeouts.current().listen_every_secs):
      try:
        texts = mailbox_lib.take_own(self._device)
        # Tasks repeat their requests.
        messages.hear(dict.fromkeys(texts), handlers)
      except tf.errors.OpError as error:
        logging.warning('Own mailbox: %s', errors.first_line(error))

  def _release_and_answer(self, leaving: messages.Leaving) -> None:
    logging.warning('%s is about to leave.', leaving.task)
    self._release(leaving.task)
    _tell(leaving.task, leaving.address, messages.MayLeave(self._task))


def _tell(task: spec_lib.Task, address: str, message: messages.Message) -> bool:
  if not health.is_alive(task, address):
    return False
  try:
    with mailbox_lib.Mailbox(address) as mailbox:
      mailbox.put(message.to_json())
  except tf.errors.OpError as error:
    logging.warning('%s: %s', task, errors.first_line(error))
    return False
  return True
