"""Callback of `fit` that writes deltas while a model is trained."""

import atexit
from collections.abc import Sequence
import functools
import os
import pathlib
import threading
from typing import Any
import weakref

from absl import logging
import keras
import tensorflow as tf

from tfps import errors
from tfps._compat import keras_fits
from tfps._compat import keras_variables
from tfps._compat import stale_cache
from tfps._utils import threads
from tfps.keras.serving import folder as folder_lib
from tfps.keras.serving import writer as writer_lib


class Deltas(keras.callbacks.Callback):
  """Callback that writes, every few seconds, what training has changed.

  `model.fit(dataset, callbacks=[tfps.serving.Deltas('/data/clicks')])`

  It first writes a base: the SavedModel of `model.export`. Each delta after
  that has the rows of variables that have changed since the one before.
  `DeltaReader` makes the model of them. Slots of optimizers are not written.

  A loop of one's own calls `start` before training, and `stop` after it.

  Between graphs, all workers may have the callback: the chief writes.

  If `fit` ends by an error, no last delta is written. A directory has one
  writer: of two in a process, the one that was started first ends.

  If a write fails, training goes on, and a warning says so once. The next write
  has what that one lacks.

  Args:
    directory: where to write; it is made if it does not exist. Another run of
      the same model may have written to it: there will be a new base.
    every_secs: the pause after each write.
    keep: how many bases, with their deltas, are kept. A new base is written,
      from the one before and its deltas, when these have more bytes than it.
    input_signature: that of `model.export`: a list of what the model takes,
      as `keras.InputSpec`s. Keras does not know the types that a model without
      `keras.Input`, such as a subclass, takes, and exports it for float32.

  Raises:
    ValueError: `every_secs` or `keep` is not positive.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    every_secs: float = 10.0,
    *,
    keep: int = 2,
    input_signature: Sequence[Any] | None = None,
  ) -> None:
    super().__init__()
    keras_fits.take_part()
    for value, what in ((every_secs, 'every_secs'), (keep, 'keep')):
      if not value > 0:
        raise ValueError(f'Deltas: {what}={value}. Give a positive number.')
    self._folder = folder_lib.Folder(directory)
    self._keep = keep
    self._input_signature = input_signature
    self._period = threads.Periodic('tfps-deltas', every_secs, self._try_write)
    self._writing = threading.Lock()
    self._started: Any = None  # the model
    self._writer: writer_lib.Writer | None = None  # None if others write
    self._has_failed = False

  def on_train_begin(self, logs: Any = None) -> None:
    keras_fits.at_end(self.model, self._pause)
    self._start_if_built()

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    if self._started is not self.model:  # it was not built before
      self._start_if_built()

  def on_train_end(self, logs: Any = None) -> None:
    self.stop()

  def start(self, model: Any) -> None:
    """Writes a base, unless it has, and begins to write periodically.

    Other processes may train meanwhile. In workers that are not the chief it
    does nothing.

    Args:
      model: a Keras model that is built.

    Raises:
      ValueError: the directory has other files or another model's base, or a
        variable holds strings.
      errors.CheckpointError: the base could not be written.
      tf.errors.OpError: a ps is lost.
    """
    writes = _writes(model)
    if writes:
      self._take_over()
    with self._writing:
      if self._started is not model or (writes and self._writer is None):
        self._writer = None
        if writes:
          self._writer = writer_lib.Writer(
            self._folder, model, self._keep, self._input_signature
          )
        self._started = model
    if self._writer is not None:
      self._period.start()
      atexit.register(self._period.stop)  # else a write could outlast Python

  def write(self) -> int:
    """Writes a delta now, unless nothing has changed.

    Returns:
      Its size in bytes; 0 if none was written.

    Raises:
      RuntimeError: `start` was not called.
      errors.CheckpointError: it could not be written.
      tf.errors.OpError: a ps is lost.
    """
    if self._started is None:
      raise RuntimeError(
        'Deltas: write() needs start(model) to be called first.'
      )
    with self._writing:
      if self._writer is None:
        return 0
      try:
        return self._writer.write()
      except tf.errors.OpError as error:
        # A ps that was lost and is back has lost its digests.
        stale_cache.forget_if_stale(error)
        self._writer.distrust()
        return self._writer.write()

  def stop(self) -> None:
    """Writes a last delta and ends; stopping twice is harmless."""
    self._pause()
    if self._started is not None:
      self._try_write()

  def _pause(self) -> None:
    atexit.unregister(self._period.stop)
    self._period.stop()

  def _take_over(self) -> None:
    """Ends another writer to the directory in this process, if there is one."""
    path = self._folder.path.resolve()
    with _lock():
      other = _writers().get(path)
      _writers()[path] = self
    if other is not None and other is not self:
      other._pause()
      with other._writing:
        other._writer = None

  def _start_if_built(self) -> None:
    values = [keras_variables.value_of(each) for each in self.model.variables]
    if self.model.built and all(value is not None for value in values):
      self.start(self.model)

  def _try_write(self) -> None:
    try:
      self.write()
      self._has_failed = False
    except (tf.errors.OpError, errors.Error) as error:
      if not self._has_failed:  # told once until it succeeds
        logging.warning(
          'A delta could not be written; the next one will have what it lacks: '
          '%s',
          errors.first_line(error),
        )
      self._has_failed = True


@functools.cache
def _lock() -> threading.Lock:
  return threading.Lock()


@functools.cache
def _writers() -> weakref.WeakValueDictionary[pathlib.Path, Deltas]:
  """Returns those that have been started last, by their directories."""
  return weakref.WeakValueDictionary()


def _writes(model: Any) -> bool:
  """Returns whether it is this process that saves the model."""
  strategy = model.distribute_strategy or tf.distribute.get_strategy()
  return bool(strategy.extended.should_checkpoint)
