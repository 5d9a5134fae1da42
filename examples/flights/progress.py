"""Tells tfps' hooks how Keras' `fit` gets on, as `Coordinator.train` does."""

from collections.abc import Mapping
from collections.abc import Sequence
import time

import keras

from tfps import hooks as hooks_lib


class Progress(keras.callbacks.Callback):
  """Calls hooks with where all workers together stand.

  Args:
    hooks: what to call at the beginning, after each execution and at the end.
    steps: the number of steps at which training ends.
  """

  def __init__(self, hooks: Sequence[hooks_lib.Hook], steps: int) -> None:
    super().__init__()
    self._hooks = hooks
    self._steps = steps

  def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
    self._began_at, self._began_with = time.monotonic(), self._step()
    self._tell('begin', {})

  def on_train_batch_end(
    self, batch: int, logs: Mapping[str, float] | None = None
  ) -> None:
    self._tell('step', logs or {})

  def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
    self._tell('end', {})

  def _step(self) -> int:
    return int(self.model.optimizer.iterations)

  def _tell(self, moment: str, metrics: Mapping[str, float]) -> None:
    step, secs = self._step(), time.monotonic() - self._began_at
    progress = hooks_lib.Progress(
      moment=moment,
      step=step,
      steps=self._steps,
      metrics=metrics,
      steps_per_sec=(step - self._began_with) / secs if secs > 0 else 0.0,
      elapsed_secs=secs,
    )
    for hook in self._hooks:
      hook(progress)
