"""Marker of the end of training: how it is left, and removed.

`training_end` says what it means.
"""

import contextlib
import json
import os
import pathlib
import time

from absl import logging
import tensorflow as tf

from tfps._utils import private_files
from tfps.training import training_end


def mark(directory: str | os.PathLike[str], step: int) -> None:
  """Leaves the marker; a warning tells if it cannot be written.

  Args:
    directory: where the checkpoints are.
    step: the number of steps that were trained.
  """
  content = json.dumps({'step': step, 'time': time.time()})
  place = os.path.join(directory, training_end.NAME)
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
  draft = marker.with_name(f'{training_end.NAME}-{os.getpid()}')
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
  place = os.path.join(directory, training_end.NAME)
  try:
    with contextlib.suppress(tf.errors.NotFoundError):
      tf.io.gfile.remove(place)
  except tf.errors.OpError as error:
    logging.warning('%s', error)
