"""A note on every ps: which ps hold variables that belong together.

A ps that restarts has lost its note, so that whoever comes later sees that what
is on the others is of another time.
"""

from collections.abc import Mapping
import contextlib

import tensorflow as tf

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import mailbox as mailbox_lib
from tfps.variables import placement_ledger

_NAME = 'tfps_recovery_note'


class ConsistencyNotes:
  """The notes of a job.

  Args:
    container: that of its variables.
  """

  def __init__(self, container: str = '') -> None:
    self._container = container

  def leave(self, incarnations: Mapping[int, int | None]) -> None:
    """Leaves the note on each ps.

    Args:
      incarnations: of all ps, by index.
    """
    for ps in incarnations:
      with tf.device(placement_ledger.ps_device(ps)):
        tf.raw_ops.AssignVariableOp(
          resource=self._handle(), value=tf.constant(_text(incarnations))
        )

  def are(self, incarnations: Mapping[int, int | None]) -> bool:
    """Whether each ps has the note that these belong together."""
    return all(self._read(ps) == _text(incarnations) for ps in incarnations)

  def deny(self, incarnations: Mapping[int, int | None]) -> bool:
    """Whether there are notes, but not on each ps that these belong together.

    A job that has just begun has none.
    """
    notes = {self._read(ps) for ps in incarnations}
    return bool(notes - {None, _text(incarnations)}) or len(notes) > 1

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


class Reader:
  """Reads notes while a ps is lost; a context manager.

  Meanwhile the eager runtime would wait for that ps, whatever one asks of it.
  """

  def __init__(self) -> None:
    self._open = contextlib.ExitStack()
    self._address = ''
    self._mailbox: mailbox_lib.Mailbox

  def read(
    self, ps: spec_lib.Task, address: str
  ) -> dict[int, int | None] | None:
    """The incarnations in the note on a ps; None if there is no note.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    if self._address != address:
      self.close()
      mailbox = mailbox_lib.Mailbox(
        ps, address, timeout_secs=timeouts.current().call_secs
      )
      self._mailbox = self._open.enter_context(mailbox)
      self._address = address
    text = self._mailbox.read(_NAME)
    return None if text is None else _incarnations(text)

  def close(self) -> None:
    """Ends the connection; twice is harmless."""
    self._address = ''
    self._open.close()

  def __enter__(self) -> 'Reader':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.close()


def _text(incarnations: Mapping[int, int | None]) -> str:
  return ' '.join(f'{ps}:{number}' for ps, number in incarnations.items())


def _incarnations(text: str) -> dict[int, int | None]:
  pairs = (pair.split(':') for pair in text.split())
  return {int(ps): int(number) for ps, number in pairs}
