"""Marker of the end of training: a file beside the checkpoints.

`train` and the callback `tfps.keras.MarkTrainingEnd` remove it at their
beginning and leave it at their end, after the last checkpoint. A launcher that
knows better names a file in an environment variable instead, which it makes
once all tasks that train have ended.
"""

import contextlib
import json
import os
import pathlib
import time

from absl import logging
import tensorflow as tf

from tfps._utils import private_files

NAME = 'training_end'
# Names the file by which a launcher tells the end of training.
VARIABLE = 'TFPS_TRAINING_END'


def mark(directory: str | os.PathLike[str], step: int) -> None:
  """Leaves the marker; a warning tells if it cannot be written.

  Args:
    directory: where the checkpoints are.
    step: the number of steps that were trained.
  """
  content = json.dumps({'step': step, 'time': time.time()})
  place = os.path.join(directory, NAME)
  try:
    if _is_in_store(directory):
      with tf.io.gfile.GFile(f'{place}-{os.getpid()}', 'w') as file:
        file.write(content)
      tf.io.gfile.rename(file.name, place, overwrite=True)
    else:
      _replace(pathlib.Path(place), content)
  except (OSError, tf.errors.OpError) as error:
    logging.warning('%s could not be written: %s.', place, error)


def _is_in_store(directory: str | os.PathLike[str]) -> bool:
  """Returns whether a directory is one of a store, as in gs://bucket."""
  return '://' in os.fspath(directory)


def _replace(marker: pathlib.Path, content: str) -> None:
  draft = marker.with_name(f'{NAME}-{os.getpid()}')
  private_files.make_folder(marker.parent)
  try:
    with private_files.open_file(draft, 'w') as file:
      file.write(content)
    draft.replace(marker)
  finally:
    draft.unlink(missing_ok=True)


def clear(directory: str | os.PathLike[str]) -> None:
  """Removes the marker of earlier training; a warning tells if it stays.

  Args:
    directory: where the checkpoints are.
  """
  place = os.path.join(directory, NAME)
  try:
    with contextlib.suppress(tf.errors.NotFoundError):
      tf.io.gfile.remove(place)
  except tf.errors.OpError as error:
    logging.warning('%s', error)


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
