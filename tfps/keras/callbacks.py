"""Callbacks for `fit`."""

import os
from typing import Any

import keras

from tfps.training import training_end


class MarkTrainingEnd(keras.callbacks.Callback):
  """Tells an evaluator that `fit` has ended, by a file beside the checkpoints.

  `model.fit(dataset, callbacks=[ModelCheckpoint(...), MarkTrainingEnd(dir)])`

  See `tfps.evaluate_checkpoints`. Between graphs, only the chief needs it, as
  it alone saves checkpoints.

  Args:
    directory: in which the checkpoints are.
  """

  def __init__(self, directory: str | os.PathLike[str]) -> None:
    super().__init__()
    self._directory = directory

  def on_train_begin(self, logs: Any = None) -> None:
    training_end.clear(self._directory)

  def on_train_end(self, logs: Any = None) -> None:
    training_end.mark(self._directory, int(self.model.optimizer.iterations))


class StopAtStep(keras.callbacks.Callback):
  """Ends `fit` after a number of the optimizer's steps over all workers.

  `model.fit(dataset, epochs=1_000_000, callbacks=[StopAtStep(10_000)])`

  Workers check it after each execution and do not wait for each other, so that
  `optimizer.iterations` may exceed `steps` by up to `steps_per_execution` for
  each further worker.

  Args:
    steps: the value of `optimizer.iterations` to reach.

  Raises:
    ValueError: `steps` is less than 1.
  """

  def __init__(self, steps: int) -> None:
    super().__init__()
    if steps < 1:
      raise ValueError(f'StopAtStep: steps is {steps}. Give 1 or more.')
    self._steps = steps

  def on_train_begin(self, logs: Any = None) -> None:
    self._stop_if_reached()

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self._stop_if_reached()

  def _stop_if_reached(self) -> None:
    if int(self.model.optimizer.iterations) >= self._steps:
      self.model.stop_training = True
