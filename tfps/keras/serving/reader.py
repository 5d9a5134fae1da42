"""Reader of a base and of the deltas that follow it."""

import contextlib
import os
import pathlib
import threading
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._compat import saved_models
from tfps._utils import quiesce_lock
from tfps.keras.serving import changed_variables
from tfps.keras.serving import delta_file
from tfps.keras.serving import folder as folder_lib


class DeltaReader:
  """Serves a model as of the last delta that `Deltas` has written.

  ```
  reader = tfps.serving.DeltaReader('/data/clicks')
  reader(ids)  # predictions
  reader.refresh()  # every few seconds
  reader.write_version('/models/clicks')  # for TensorFlow Serving
  ```

  Neither the model's code nor a cluster is needed. Calls may be made in any
  thread; while a delta is applied, they wait.

  Args:
    directory: that of `Deltas`.

  Raises:
    ValueError: there is no such directory, or no base in it.
    errors.CheckpointError: a base or delta is damaged, missing, or of another
      format.
  """

  def __init__(self, directory: str | os.PathLike[str]) -> None:
    self._folder = folder_lib.Folder(directory)
    self._lock = quiesce_lock.QuiesceLock()
    self._refreshing = threading.Lock()
    self._model: Any = None
    self._version = folder_lib.Version(0, 0)
    self.refresh()

  @property
  def model(self) -> Any:
    """The SavedModel, as of `tf.saved_model.load`.

    Its variables change in `refresh`. That a newer base has come may replace
    it.
    """
    return self._model

  @property
  def version(self) -> folder_lib.Version:
    """Number of the base, and of the last delta of it that is applied."""
    return self._version

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the model's predictions; see `keras.Model.export`.

    Args:
      *args: the model's inputs.
      **kwargs: the model's inputs.
    """
    with self._lock:
      return self._model.serve(*args, **kwargs)

  def refresh(self) -> int:
    """Applies the deltas that have been written since.

    If there is a newer base, it becomes the model.

    Returns:
      How many deltas were applied.

    Raises:
      ValueError: there is no such directory, or no base in it.
      errors.CheckpointError: a base or delta is damaged, missing, or of another
        format. The model stays as it is after the delta before.
    """
    with self._refreshing:
      return self._refresh()

  def write_version(self, directory: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a SavedModel of the present version for TensorFlow Serving.

    Args:
      directory: that of the model in TensorFlow Serving; it is made if it does
        not exist. The SavedModel is in a folder of it, whose name is a number
        above all others there, and gets it once it is complete.

    Returns:
      The path of the SavedModel.

    Raises:
      tf.errors.OpError: it could not be written.
      OSError: it could not be written.
    """
    parent = pathlib.Path(directory).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [int(p.name) for p in parent.iterdir() if p.name.isdecimal()]
    path = parent / str(max(numbers, default=0) + 1)
    with folder_lib.drafted(parent / f'draft-{os.getpid()}') as draft:
      self.save(draft)
      folder_lib.publish(draft, path)
    return path

  def save(self, directory: str | os.PathLike[str]) -> None:
    """Saves the model in a directory that does not exist.

    Args:
      directory: where.

    Raises:
      tf.errors.OpError: it could not be written.
    """
    with self._lock:
      saved_models.save(self._model, directory)

  def _refresh(self) -> int:
    newest = self._newest_base()
    number = 0
    if self._model is not None and self._version.base != newest:
      follows = self._folder.manifest(newest).get('follows')
      if follows is not None and follows[0] == self._version.base:
        before = self._version.sequence
        # Those that were removed since are in the new base.
        with contextlib.suppress(errors.CheckpointError):
          self._apply_until(folder_lib.Version(*follows))
        number += self._version.sequence - before
      if follows == list(self._version):  # the new base is what is loaded
        self._version = folder_lib.Version(newest, 0)
    if self._model is None or self._version.base != newest:
      self._load(newest)
    last = max(self._folder.sequences(newest), default=0)
    return number + self._apply_until(folder_lib.Version(newest, last))

  def _newest_base(self) -> int:
    path = self._folder.path
    if not path.is_dir():
      raise ValueError(
        f'{path} is no directory. Give the one that tfps.serving.Deltas '
        'writes to, once training has begun.'
      )
    bases = self._folder.bases()
    if not bases:
      raise ValueError(
        f'{path} has no base. Give the directory that tfps.serving.Deltas '
        'writes to, once training has begun.'
      )
    return bases[-1]

  def _load(self, base: int) -> None:
    path = self._folder.base(base)
    self._folder.manifest(base)  # checks the format
    try:
      model = saved_models.load(path)
    except (tf.errors.OpError, OSError, ValueError) as error:
      raise errors.CheckpointError(
        f'{path} is damaged: {errors.first_line(error)}. Copy it again from '
        'where it was written, or start Deltas again, which writes a new base.'
      ) from error
    with self._lock.closed():
      self._model = model
      self._version = folder_lib.Version(base, 0)

  def _apply_until(self, last: folder_lib.Version) -> int:
    """Applies the deltas of a base up to one; returns how many these are."""
    before = self._version.sequence
    present = set(self._folder.sequences(last.base))
    for sequence in range(before + 1, last.sequence + 1):
      version = folder_lib.Version(last.base, sequence)
      path = self._folder.delta(version)
      if sequence not in present:
        raise errors.CheckpointError(
          f'{path} is missing, and deltas up to {last.sequence} are there. '
          'Copy it from where it was written, or start Deltas again, which '
          'writes a new base.'
        )
      parts = delta_file.read(path, version)
      with self._lock.closed():
        changed_variables.apply(self._model, parts)
        self._version = version
    return last.sequence - before
