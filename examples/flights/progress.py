"""What the chief shows and notes while Keras' `fit` goes on."""

from collections.abc import Mapping
import dataclasses
import sys
import time

import keras

from tfps.training import hooks

Logs = Mapping[str, float] | None

_LINE_EVERY_SECS = 3.0


@dataclasses.dataclass(frozen=True)
class Score:
  """How the model did at the end of an epoch.

  Attributes:
    step: the steps that all workers together have done.
    secs: since training began.
    loss: the mean cross-entropy on the flights for validation.
    auc: the area under the ROC curve on them.
  """

  step: int
  secs: float
  loss: float
  auc: float


class Progress(keras.callbacks.Callback):
  """Says now and then how all workers get on, and remembers the scores.

  Args:
    steps: how many steps they are to do together.
  """

  def __init__(self, steps: int) -> None:
    super().__init__()
    self.scores: list[Score] = []
    self._steps = steps
    self._line = hooks.LogProgress(every_secs=_LINE_EVERY_SECS, log=print)

  def on_train_begin(self, logs: Logs = None) -> None:
    self._began_at = time.monotonic()
    self._tell('begin')

  def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
    self._tell('step')

  def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
    logs = logs or {}
    self.scores.append(
      Score(self._step(), self._secs(), logs['val_loss'], logs['val_auc'])
    )

  def on_train_end(self, logs: Logs = None) -> None:
    self._tell('end')

  def _step(self) -> int:
    return int(self.model.optimizer.iterations)

  def _secs(self) -> float:
    return time.monotonic() - self._began_at

  def _tell(self, moment: str) -> None:
    if sys.stdout.isatty():
      return  # Keras shows its bar there
    step, secs = self._step(), self._secs()
    rate = step / secs if secs > 0 else 0.0
    self._line(hooks.Progress(moment, step, self._steps, {}, rate, secs))
