"""Marker of the end of training: a file beside the checkpoints.

`train` and the callback `tfps.keras.MarkTrainingEnd` remove it at their
beginning and leave it at their end, after the last checkpoint. A launcher that
knows better names a file in an environment variable instead, which it makes
once all tasks that train have ended.
"""

import os
import pathlib
import time

NAME = 'training_end'
# Names the file by which a launcher tells the end of training.
VARIABLE = 'TFPS_TRAINING_END'


class Signs:
  """Signs by which an evaluator knows that training has ended.

  Training may go on although a marker is there: from an earlier run, until the
  next one removes it, or between two calls of `train`. It therefore counts
  once it has been there for a while. What a launcher tells is final.

  Args:
    directory: where the checkpoints are.
    linger_secs: how long the same marker must have been there.
    launcher_file: made by the launcher at the end; '' if there is none.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    *,
    linger_secs: float,
    launcher_file: str,
  ) -> None:
    self._marker = pathlib.Path(directory, NAME)
    self._linger_secs = linger_secs
    self._launcher_file = launcher_file
    self._seen: tuple[int, float] | None = None  # its time, and when first seen

  def has_ended(self) -> bool:
    """Returns whether training has ended; to be asked periodically."""
    if self._launcher_file and os.path.exists(self._launcher_file):
      return True
    try:
      made = self._marker.stat().st_mtime_ns
    except OSError:
      self._seen = None
      return False
    if self._seen is None or self._seen[0] != made:
      self._seen = made, time.monotonic()
    return time.monotonic() >= self._seen[1] + self._linger_secs
