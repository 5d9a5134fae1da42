"""Callbacks for `fit`."""

from typing import Any

import keras


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
