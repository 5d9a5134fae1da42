"""How well a model that lives on the ps does on the held-out flights."""

from collections.abc import Callable
import dataclasses

import features
import keras
from scipy import special
from sklearn import metrics

from tfps import hooks


@dataclasses.dataclass(frozen=True)
class Score:
  """How the model did at one moment of training.

  Attributes:
    step: the global step.
    secs: since training began.
    loss: the mean cross-entropy on the held-out flights.
    auc: the area under the ROC curve on them.
  """

  step: int
  secs: float
  loss: float
  auc: float

  def __str__(self) -> str:
    return f'held out: AUC {self.auc:.4f}, loss {self.loss:.4f}'


class Evaluation:
  """A hook that scores the model and remembers the scores.

  Training goes on meanwhile: the weights are fetched once, into a copy of the
  model in this process, which may be a few steps behind when it is scored.

  Args:
    model: the model that is trained.
    copy: the same model, made outside of the strategy's scope.
    examples: the held-out flights.
    write: takes a line on each score.
  """

  def __init__(
    self,
    model: keras.Model,
    copy: keras.Model,
    *,
    examples: features.Examples,
    write: Callable[[str], object] = print,
  ) -> None:
    self.scores: list[Score] = []
    self._model = model
    self._copy = copy
    self._examples = examples
    self._write = write

  def __call__(self, progress: hooks.Progress) -> None:
    if self.scores and self.scores[-1].step == progress.step:
      return
    self._copy.set_weights(self._model.get_weights())
    score = self._score(progress.step, progress.elapsed_secs)
    self.scores.append(score)
    self._write(f'step {score.step} of {progress.steps}, {score}')

  def _score(self, step: int, secs: float) -> Score:
    inputs, late = self._examples.inputs(), self._examples.late.ravel()
    logits = self._copy.predict_on_batch(inputs).ravel()
    loss = metrics.log_loss(late, special.expit(logits.astype('float64')))
    return Score(step, secs, float(loss), metrics.roc_auc_score(late, logits))
