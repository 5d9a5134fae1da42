"""A note on every ps: which ps hold variables that belong together.

A ps that restarts has lost its note, so that whoever comes later sees that what
is on the others is of another time.
"""

from collections.abc import Mapping

import tensorflow as tf

from tfps import _ledger

_NAME = 'tfps_recovery_note'


class Notes:
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
      with tf.device(_ledger.ps_device(ps)):
        tf.raw_ops.AssignVariableOp(
          resource=self._handle(), value=tf.constant(_text(incarnations))
        )

  def are(self, incarnations: Mapping[int, int | None]) -> bool:
    """Whether each ps has the note that these belong together."""
    return all(self._read(ps) == _text(incarnations) for ps in incarnations)

  def _read(self, ps: int) -> str | None:
    with tf.device(_ledger.ps_device(ps)):
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


def _text(incarnations: Mapping[int, int | None]) -> str:
  return ' '.join(f'{ps}:{number}' for ps, number in incarnations.items())
