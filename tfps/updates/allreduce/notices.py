"""Notices of a group: entries of the workers, and the state that leads them.

They are strings on the server of the worker that leads, by the mailbox of a
task (`server.mailbox`). The leader itself accesses them without a session,
which must not coincide with a change of the group; see `_compat.collectives`.
"""

import atexit
import threading

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.server import mailbox as mailbox_lib
from tfps.updates.allreduce import generations

_STATE = 'tfps_group'


class Notices:
  """Access of one worker to the notices.

  Args:
    leader: the task that leads.
    address: where its server listens.
    own: task of this process.
    runtime_lock: held while the group of this process changes.
  """

  def __init__(
    self,
    leader: spec_lib.Task,
    address: str,
    own: spec_lib.Task,
    runtime_lock: threading.Lock,
  ) -> None:
    self._address = address
    self._is_own = leader == own
    self._device = f'/job:{own.job}/task:{own.index}/device:CPU:0'
    self._runtime_lock = runtime_lock
    self._lock = threading.Lock()
    self._mailbox: mailbox_lib.Mailbox | None = None
    atexit.register(self._disconnect)

  def state(self) -> generations.State:
    """Returns the leader's decision.

    Raises:
      tf.errors.OpError: the leader does not answer.
    """
    text = self._read(_STATE)
    return (
      generations.State() if text is None else generations.State.parse(text)
    )

  def decide(self, state: generations.State) -> None:
    """Replaces the leader's decision; only the leader calls it."""
    self._post(str(state), _STATE)

  def entry(self, worker: int) -> generations.Entry | None:
    """Returns a worker's entry; None if it has made none.

    Args:
      worker: its number.

    Raises:
      tf.errors.OpError: the leader does not answer.
    """
    text = self._read(f'{_STATE}_{worker}')
    return None if text is None else generations.Entry.parse(text)

  def entries(self, num_workers: int) -> dict[int, generations.Entry]:
    """Returns the entries of the workers that have made one, by number.

    Args:
      num_workers: number of workers of the cluster.

    Raises:
      tf.errors.OpError: the leader does not answer.
    """
    found = {i: self.entry(i) for i in range(num_workers)}
    return {i: entry for i, entry in found.items() if entry is not None}

  def enter(self, worker: int, entry: generations.Entry) -> None:
    """Replaces the entry of a worker.

    Args:
      worker: its number.
      entry: the new entry.

    Raises:
      tf.errors.OpError: the leader does not answer.
    """
    self._post(str(entry), f'{_STATE}_{worker}')

  def _read(self, about: str) -> str | None:
    if self._is_own:
      with self._runtime_lock:
        return mailbox_lib.read_own(self._device, about)
    with self._lock:
      try:
        return self._connected().read(about)
      except tf.errors.OpError:
        self._disconnect()
        raise

  def _post(self, text: str, about: str) -> None:
    if self._is_own:
      with self._runtime_lock:
        mailbox_lib.post_own(self._device, text, about)
      return
    with self._lock:
      try:
        self._connected().post(text, about)
      except tf.errors.OpError:
        self._disconnect()
        raise

  def _connected(self) -> mailbox_lib.Mailbox:
    if self._mailbox is None:
      self._mailbox = mailbox_lib.Mailbox(self._address)
    return self._mailbox

  def _disconnect(self) -> None:
    mailbox, self._mailbox = self._mailbox, None
    if mailbox is not None:
      mailbox.abandon()
