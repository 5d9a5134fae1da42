"""Follows the checkpoints that training writes to a directory."""

from collections.abc import Iterable
import os
import pathlib
import time

from absl import logging

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.training import checkpoint_files
from tfps.training import training_end


class CheckpointFollower:
  """Gives checkpoints one by one as they come, until training has ended.

  For each checkpoint of `next`, call `note_done` or `note_failure`.

  Args:
    directory: of the checkpoints; it may not exist yet.
    done: keys of the checkpoints that were done before.
    every_checkpoint: whether to give all checkpoints, oldest first, instead of
      the newest.
    timeout_secs: how long to wait for a checkpoint; None for no limit.

  Raises:
    ValueError: the directory is a file.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    done: Iterable[tuple[str, float]],
    every_checkpoint: bool,
    timeout_secs: float | None,
  ) -> None:
    if directory.is_file():
      raise ValueError(
        f'evaluate_checkpoints: {directory} is a file. Give the directory in '
        'which training saves checkpoints.'
      )
    self._directory = directory
    self._done = set(done)
    self._every_checkpoint = every_checkpoint
    self._timeout_secs = timeout_secs
    self._signs = training_end.Signs(
      directory,
      linger_secs=timeouts.current().training_end_secs,
      launcher_file=os.environ.get(training_end.VARIABLE, ''),
    )
    self._failed_once: tuple[str, float] | None = None
    self._unreadable: set[tuple[str, float]] = set()
    self._deadline = deadlines.after(timeout_secs)

  def next(self) -> checkpoint_files.CheckpointFile | None:
    """Waits for the next checkpoint.

    Returns:
      The checkpoint; None if training has ended.

    Raises:
      errors.DeadlineError: none came in time, and none was done before.
      errors.CheckpointError: the same, and training has ended.
    """
    while True:
      # Asked first: the last checkpoint was there before the sign.
      has_ended = self._signs.has_ended()
      if (found := self._pending()) is not None:
        return found
      if has_ended:
        self._check_any(errors.CheckpointError, 'training has ended without a')
        return None
      if deadlines.is_over(self._deadline):
        within = f'within {self._timeout_secs:g} seconds (timeout_secs)'
        self._check_any(errors.DeadlineError, f'{within} there was no')
        logging.warning(
          '%s: no other checkpoint came %s. The evaluator ends.',
          self._directory,
          within,
        )
        return None
      time.sleep(timeouts.current().probe_every_secs)

  def note_done(self, checkpoint: checkpoint_files.CheckpointFile) -> None:
    """Notes that a checkpoint was evaluated."""
    self._done.add(checkpoint.key)
    self._deadline = deadlines.after(self._timeout_secs)

  def note_failure(
    self, checkpoint: checkpoint_files.CheckpointFile, error: Exception
  ) -> None:
    """Notes that a checkpoint could not be read.

    It is tried once more, because it may not be complete yet, and again after
    each change.

    Args:
      checkpoint: the checkpoint.
      error: why.
    """
    modified = checkpoint.modified_now()
    if modified is None:
      logging.info('%s was deleted before it was read.', checkpoint.path)
    elif (
      self._failed_once == checkpoint.key and modified == checkpoint.modified
    ):
      logging.error(
        '%s cannot be read and is skipped: %s',
        checkpoint.path,
        errors.first_line(error),
      )
      self._unreadable.add(checkpoint.key)
    else:
      self._failed_once = checkpoint.key
      time.sleep(timeouts.current().probe_every_secs)

  def _pending(self) -> checkpoint_files.CheckpointFile | None:
    """Returns the checkpoint that is to be done next, if there is one."""
    found = [
      checkpoint
      for checkpoint in checkpoint_files.find(self._directory)
      if checkpoint.key not in self._unreadable
    ]
    if self._every_checkpoint:
      return next((c for c in found if c.key not in self._done), None)
    # What is older than one that was done was skipped.
    return found[-1] if found and found[-1].key not in self._done else None

  def _check_any(self, kind: type[errors.Error], what: str) -> None:
    """Raises an error unless a checkpoint was done."""
    if self._done:
      return
    problem = f'{self._directory}: {what} checkpoint'
    if self._unreadable:
      names = ', '.join(sorted(name for name, _ in self._unreadable))
      raise kind(f'{problem} that can be read; {names} cannot.')
    raise kind(
      f'{problem}. Give the directory to which training saves with '
      'keras.callbacks.ModelCheckpoint, checkpoint_dir or '
      'tf.train.CheckpointManager; snapshots of a tfps.Recovery are none.'
    )
