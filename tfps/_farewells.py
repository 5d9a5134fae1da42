"""A task that is told to end asks the chief to let it go.

The task, which serves, puts its request into the mailbox of each client that
listens, and waits until they have done without it, or for as long as it has.
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

from tfps import _mailbox
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import probe

_LEAVING = 'leaving'
_MAY_LEAVE = 'may_leave'
_CALL_SECS = 5.0
_LISTEN_SECS = 0.25


def request(
  task: cluster_lib.Task,
  address: str,
  clients: Mapping[cluster_lib.Task, str],
) -> set[cluster_lib.Task]:
  """Asks clients to let a task go; those that could be asked.

  Args:
    task: the one that is to end.
    address: where its server listens, for the answer.
    clients: whom to ask, with their addresses.
  """
  message = {_LEAVING: dataclasses.asdict(task), 'at': address}
  return {
    client
    for client, where in clients.items()
    if _tell(client, where, json.dumps(message))
  }


def answered(message: str) -> cluster_lib.Task | None:
  """The client that lets this task go, if a message says so."""
  client = json.loads(message).get(_MAY_LEAVE)
  return client and cluster_lib.Task(**client)


class Listener:
  """Hears, in a thread, which tasks want to leave, and lets them go.

  A process has one mailbox, so a new listener stops the last one: that of a
  strategy that was not closed would let tasks go that are in use.

  Args:
    task: of this process, which is connected to its cluster.
    do_without: called with a task; it may leave when that returns.
  """

  _last: ClassVar['Listener | None'] = None

  def __init__(
    self,
    task: cluster_lib.Task,
    do_without: Callable[[cluster_lib.Task], object],
  ) -> None:
    last, Listener._last = Listener._last, self
    if last is not None:
      last.stop()
    self._task = task
    self._device = f'/job:{task.job}/task:{task.index}/device:CPU:0'
    self._do_without = do_without
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='tfps-farewells', daemon=True
    )
    self._thread.start()
    atexit.register(self.stop)

  def stop(self) -> None:
    """Hears no more; twice is harmless."""
    self._stopping.set()
    self._thread.join(_CALL_SECS)
    atexit.unregister(self.stop)

  def _run(self) -> None:
    while not self._stopping.wait(_LISTEN_SECS):
      try:
        self._hear(_mailbox.take_own(self._device))
      except tf.errors.OpError as error:
        logging.warning('Own mailbox: %s', errors.first_line(error))

  def _hear(self, messages: Iterable[str]) -> None:
    for message in messages:
      facts = json.loads(message)
      if _LEAVING not in facts:
        continue
      task = cluster_lib.Task(**facts[_LEAVING])
      logging.warning('%s is about to leave.', task)
      self._do_without(task)
      answer = {_MAY_LEAVE: dataclasses.asdict(self._task)}
      _tell(task, facts['at'], json.dumps(answer))


def _tell(task: cluster_lib.Task, address: str, message: str) -> bool:
  if not probe.is_alive(task, address):
    return False
  try:
    with _mailbox.Mailbox(task, address, timeout_secs=_CALL_SECS) as mailbox:
      mailbox.put(message)
  except tf.errors.OpError as error:
    logging.warning('%s: %s', task, errors.first_line(error))
    return False
  return True
