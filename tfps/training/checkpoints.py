"""Checkpoints of training: when and where to save, and how to resume."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import re
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps.cluster import spec as spec_lib
from tfps.training import end_marker

_STATE, _INDEX = 'checkpoint', '.index'


@dataclasses.dataclass(frozen=True)
class Saving:
  """Settings of checkpoints: contents, directory and period.

  Without either period, a checkpoint is saved only at the end of training.

  Attributes:
    checkpoint: a `tf.train.Checkpoint` or another trackable.
    directory: where to save, and resume from; None disables both.
    every_secs: the period in seconds.
    every_steps: the period in steps.
    max_to_keep: how many checkpoints to keep.
    options: how to write and read; by default this process writes all values.

  Raises:
    ValueError: only one of `checkpoint` and `directory` is given, or a number
      is not positive.
  """

  checkpoint: Any = None
  directory: str | os.PathLike[str] | None = None
  every_secs: float | None = None
  every_steps: int | None = None
  max_to_keep: int = 3
  options: tf.train.CheckpointOptions | None = None

  def __post_init__(self) -> None:
    if (self.checkpoint is None) != (self.directory is None):
      raise ValueError(
        f'checkpoint={self.checkpoint!r}, checkpoint_dir={self.directory!r}: '
        'give both, or neither.'
      )
    for name in ('every_secs', 'every_steps', 'max_to_keep'):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f'checkpoint {name}={value}: must be positive.')
    if self.directory is None and (self.every_secs or self.every_steps):
      raise ValueError(
        f'checkpoint every_secs={self.every_secs}, every_steps='
        f'{self.every_steps}: periodic checkpoints need a checkpoint_dir.'
      )


class Checkpoints:
  """Saves checkpoints periodically, and resumes training from the latest.

  Args:
    saving: the settings.
    global_step: saved with the checkpoint, as `global_step`.
    task: the task of this process, which writes the files.
    queues: the queues of splits, saved with the checkpoint as `splits`,
      `splits_1` and so on. A queue that is not in the checkpoint from which
      training resumes stays as it is.
  """

  def __init__(
    self,
    saving: Saving,
    global_step: tf.Variable,
    *,
    task: spec_lib.Task,
    queues: Sequence[Any] = (),
  ) -> None:
    self._saving = saving
    self._global_step = global_step
    self._queues = _named(queues)
    # By TensorFlow's default each ps writes its own values, which needs a
    # filesystem that all tasks share; so this process writes all of them.
    self._options = saving.options or tf.train.CheckpointOptions(
      experimental_io_device=_device(task)
    )
    self._step_saved = 0
    self._secs_saved = 0.0
    self._manager: tf.train.CheckpointManager | None = None
    if saving.directory is not None:
      self._manager = tf.train.CheckpointManager(
        self._checkpoint(self._queues),
        os.fspath(saving.directory),
        saving.max_to_keep,
      )

  def restore(self) -> str | None:
    """Restores the latest checkpoint.

    Returns:
      Its path; None if there is no checkpoint or no directory.

    Raises:
      errors.CheckpointError: the checkpoint is damaged or does not match, or
        the directory's state file names none though there are checkpoints.
      tf.errors.OpError: a ps is lost.
    """
    if self._manager is None:
      return None
    _check_state(self._manager.directory)
    path: str | None = self._manager.latest_checkpoint
    if path is not None:
      with _reading(path):
        status = self._restorable(path).restore(path, options=self._options)
        status.assert_existing_objects_matched()
      logging.info('Resumed from %s.', path)
    return path

  def _restorable(self, path: str) -> tf.train.Checkpoint:
    """Returns what to restore: without queues that a checkpoint has not."""
    assert self._manager is not None
    # Unlike tf.train.load_checkpoint, it does not look for a directory first.
    reader = tf.compat.v1.train.NewCheckpointReader(path)
    keys = reader.get_variable_to_shape_map()
    found = {
      name: queue
      for name, queue in self._queues.items()
      if any(key.startswith(f'{name}/') for key in keys)
    }
    if len(found) == len(self._queues):
      return self._manager.checkpoint
    logging.info(
      '%s has the progress of %d of %d queues of splits. The others are left '
      'as they are.',
      path,
      len(found),
      len(self._queues),
    )
    return self._checkpoint(found)

  def _checkpoint(self, queues: Mapping[str, Any]) -> tf.train.Checkpoint:
    # With the user's object as root, its files can be restored without tfps.
    return tf.train.Checkpoint(
      root=self._saving.checkpoint, global_step=self._global_step, **queues
    )

  def begin(self, step: int, secs: float) -> None:
    """Starts a period.

    Args:
      step: the global step.
      secs: the time in seconds, by the clock of `is_due` and `save`.
    """
    self._step_saved, self._secs_saved = step, secs

  def mark_begin(self) -> None:
    """Tells an evaluator that training goes on."""
    if self._saving.directory is not None:
      end_marker.clear(self._saving.directory)

  def mark_end(self, step: int) -> None:
    """Tells an evaluator that training has ended, after the last checkpoint.

    Args:
      step: the global step.
    """
    if self._saving.directory is not None:
      end_marker.mark(self._saving.directory, step)

  def is_due(self, step: int, secs: float) -> bool:
    """Returns whether a period has ended.

    Args:
      step: the global step.
      secs: the time in seconds.
    """
    every_steps, every_secs = self._saving.every_steps, self._saving.every_secs
    if step == self._step_saved:
      return False
    return bool(
      (every_steps and step >= self._step_saved + every_steps)
      or (every_secs and secs >= self._secs_saved + every_secs)
    )

  def save(self, step: int, secs: float) -> None:
    """Saves a checkpoint unless this step is saved, and starts a period.

    Args:
      step: the global step, which names the files.
      secs: the time in seconds.

    Raises:
      errors.CheckpointError: the directory cannot be written, for example
        because the disk is full; earlier checkpoints are kept.
      tf.errors.OpError: a ps is lost.
    """
    if self._manager is not None and (
      step > self._step_saved or self._manager.latest_checkpoint is None
    ):
      _make(self._manager.directory)
      with _writing(self._manager.directory, step):
        path = self._manager.save(checkpoint_number=step, options=self._options)
      logging.info('Saved %s.', path)
    self.begin(step, secs)


def _device(task: spec_lib.Task) -> str:
  """Returns the CPU of this process, which has no task without a cluster."""
  name = f'/job:{task.job}/replica:0/task:{task.index}/device:CPU:0'
  known = {device.name for device in tf.config.list_logical_devices('CPU')}
  return name if name in known else '/device:CPU:0'


def _named(queues: Sequence[Any]) -> dict[str, Any]:
  return {f'splits_{i}' if i else 'splits': q for i, q in enumerate(queues)}


def _make(directory: str) -> None:
  try:
    tf.io.gfile.makedirs(directory)
  except tf.errors.OpError as error:
    raise errors.CheckpointError(
      f'{directory} could not be made: {errors.first_line(error)}.'
    ) from error


@contextlib.contextmanager
def _writing(directory: str, step: int) -> Iterator[None]:
  """Deletes the files of a checkpoint that could not be written.

  Raises:
    errors.CheckpointError: it could not be written.
    tf.errors.OpError: the error is not about a file.
  """
  before = _written(directory, step)
  try:
    yield
  except (tf.errors.OpError, OSError) as error:
    if directory not in str(error):  # file errors name the file
      raise
    for path in _written(directory, step) - before:
      _remove(path)
    raise errors.CheckpointError(
      f'{directory}: step {step} could not be saved: '
      f'{errors.first_line(error)}. Earlier checkpoints are kept.'
    ) from error


def _written(directory: str, step: int) -> set[str]:
  """Returns the files of a checkpoint, and temporary state files."""
  is_own = re.compile(rf'ckpt-{step}(\..*|_temp)|checkpoint\.tmp.*').fullmatch
  try:
    names = _listed(directory)
  except tf.errors.OpError:  # may be written, but not listed
    return set()
  return {os.path.join(directory, name) for name in names if is_own(name)}


def _remove(path: str) -> None:
  with contextlib.suppress(tf.errors.NotFoundError):
    if tf.io.gfile.isdir(path):
      tf.io.gfile.rmtree(path)
    else:
      tf.io.gfile.remove(path)


def _listed(directory: str) -> list[str]:
  """Returns the names in a directory, none if there is no such directory.

  It may be that of a store, such as gs://bucket/folder.
  """
  if not tf.io.gfile.isdir(directory):
    return []
  return [name.rstrip('/') for name in tf.io.gfile.listdir(directory)]


def _check_state(directory: str) -> None:
  """Checks the state file, without which TensorFlow finds no checkpoint.

  Raises:
    errors.CheckpointError: it is damaged or missing though there are
      checkpoints, or names one that does not exist, or the directory cannot be
      read.
  """
  try:
    names = _listed(directory)
  except tf.errors.OpError as error:
    raise errors.CheckpointError(
      f'{directory} could not be read: {errors.first_line(error)}.'
    ) from error
  if _STATE not in names and not _checkpoints(names):
    return
  try:
    state = tf.train.get_checkpoint_state(directory)
  except ValueError:
    state = None
  if state is None:
    raise errors.CheckpointError(
      f'{_state_file(directory)} does not name a checkpoint, though '
      f'{_told(names)}. {_remedy(directory)}'
    )
  if not tf.train.latest_checkpoint(directory):
    raise errors.CheckpointError(
      f'{state.model_checkpoint_path}: named by {_state_file(directory)}, but '
      f'{_told(names)}. {_remedy(directory)}'
    )


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """Turns errors of restoring a checkpoint into those of tfps."""
  try:
    yield
  except (
    tf.errors.OpError,
    AssertionError,
    LookupError,
    ValueError,
  ) as error:
    raise errors.CheckpointError(
      f'{path} cannot be restored: {errors.first_line(error)} '
      f'{_remedy(os.path.dirname(path))}'
    ) from error


def _state_file(directory: str) -> str:
  return os.path.join(directory, _STATE)


def _checkpoints(names: Iterable[str]) -> list[str]:
  return sorted(n.removesuffix(_INDEX) for n in names if n.endswith(_INDEX))


def _told(names: Iterable[str]) -> str:
  found = _checkpoints(names)
  return f'there are {", ".join(found)}' if found else 'there are none'


def _remedy(directory: str) -> str:
  return (
    'Name an intact checkpoint as model_checkpoint_path in '
    f'{_state_file(directory)}, or train in another directory to start from '
    'scratch.'
  )
