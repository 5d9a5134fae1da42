"""Consistency notes: on each ps, the incarnations whose variables fit together.

A restarted ps has no note, so that a client that connects later sees that the
variables of the other ps do not fit.

Where several processes share the variables, the chief posts the incarnations
on its own server, too, before it restores the variables. So another process
learns of it even if all ps that it knows were frozen, taken over and answer
again, one after another, so that their notes are of before.
"""

from collections.abc import Mapping

import tensorflow as tf

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib
from tfps.variables import placement_ledger

_NAME = 'tfps_recovery_note'


class ConsistencyNotes:
  """Notes of a job.

  Args:
    container: resource container of the job's variables.
    device: a CPU of this process, in the cluster, if it is the chief and other
      processes share the variables; else None.
    chief: the chief and the address of its server, if this is another process
      that shares its variables; else None.
  """

  def __init__(
    self,
    container: str = '',
    *,
    device: str | None = None,
    chief: tuple[spec_lib.Task, str] | None = None,
  ) -> None:
    self._container = container
    self._device = device
    self._chief = chief
    self._mailboxes = mailbox_lib.Mailboxes()
    self._last: str | None = None  # that this process has written

  def announce(self, incarnations: Mapping[int, int | None]) -> None:
    """Posts the ps that are in use from now on, if this is the chief.

    Args:
      incarnations: those of all ps, by index; none if that is not known yet.
    """
    if self._device is not None:
      self._post(_text(incarnations))

  def latest(self) -> dict[int, int | None] | None:
    """Returns what the chief has posted; None if it does not tell."""
    text = None if self._chief is None else self._read_posted(*self._chief)
    return _incarnations(text) if text else None

  def close(self) -> None:
    """Closes the connection to the chief; closing twice is harmless."""
    self._mailboxes.abandon()

  def write(self, incarnations: Mapping[int, int | None]) -> None:
    """Writes the note on each ps, and announces it.

    Args:
      incarnations: those of all ps, by index.
    """
    self.announce(incarnations)
    self._last = _text(incarnations)
    for ps in incarnations:
      self._write(ps, self._last)

  def match(self, incarnations: Mapping[int, int | None]) -> bool:
    """Returns whether each ps has the note of these incarnations.

    If this process has written notes, they must be the last ones: ps that were
    frozen, and taken over meanwhile, have those of before.
    """
    text = _text(incarnations)
    if self._last not in (None, text):
      return False
    return all(self._read(ps) == text for ps in incarnations)

  def are_of_others(self, incarnations: Mapping[int, int | None]) -> bool:
    """Returns whether the chief uses other ps than this process.

    Args:
      incarnations: those that this process uses, by index.
    """
    latest = self.latest()
    if latest is None:
      return self.contradict(incarnations)
    return latest != incarnations

  def contradict(self, incarnations: Mapping[int, int | None]) -> bool:
    """Returns whether there are notes, but not these on each ps.

    A new job has none.
    """
    notes = {self._read(ps) for ps in incarnations}
    return bool(notes - {None, _text(incarnations)}) or len(notes) > 1

  def _post(self, text: str) -> None:
    assert self._device is not None
    mailbox_lib.post_own(self._device, text, _NAME)

  def _read_posted(self, chief: spec_lib.Task, address: str) -> str | None:
    status = health.probe(chief, address)
    if status.state is not health.State.ALIVE:
      return None
    secs = timeouts.current().call_secs
    try:
      with self._mailboxes.at(address, status.incarnation, secs) as mailbox:
        return mailbox.read(_NAME)
    except tf.errors.OpError:
      return None

  def _write(self, ps: int, text: str) -> None:
    with tf.device(placement_ledger.ps_device(ps)):
      tf.raw_ops.AssignVariableOp(
        resource=self._handle(), value=tf.constant(text)
      )

  def _read(self, ps: int) -> str | None:
    with tf.device(placement_ledger.ps_device(ps)):
      handle = self._handle()
      if not tf.raw_ops.VarIsInitializedOp(resource=handle).numpy():
        return None
      text: bytes = tf.raw_ops.ReadVariableOp(
        resource=handle, dtype=tf.string
      ).numpy()
    return text.decode()

  def _handle(self) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(
      dtype=tf.string, shape=[], shared_name=_NAME, container=self._container
    )


class NoteReader:
  """Reads notes while a ps is lost; a context manager.

  TensorFlow's eager runtime would wait for the lost ps at any call.
  """

  def __init__(self) -> None:
    self._address = ''
    self._mailbox: mailbox_lib.Mailbox | None = None

  def read(self, address: str) -> dict[int, int | None] | None:
    """Returns the incarnations in the note on a ps; None without a note.

    Args:
      address: of the ps.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    if self._mailbox is None or self._address != address:
      self.close()
      self._mailbox = mailbox_lib.Mailbox(address)
      self._address = address
    try:
      text = self._mailbox.read(_NAME)
    except tf.errors.OpError:
      self.close()  # a ps that has restarted does not know the session
      raise
    return None if text is None else _incarnations(text)

  def close(self) -> None:
    """Closes the connection; closing twice is harmless."""
    mailbox, self._mailbox = self._mailbox, None
    if mailbox is not None:
      mailbox.abandon()  # the ps may be lost meanwhile

  def __enter__(self) -> 'NoteReader':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.close()


def _text(incarnations: Mapping[int, int | None]) -> str:
  return ' '.join(f'{ps}:{number}' for ps, number in incarnations.items())


def _incarnations(text: str) -> dict[int, int | None]:
  pairs = (pair.split(':') for pair in text.split())
  return {int(ps): int(number) for ps, number in pairs}
