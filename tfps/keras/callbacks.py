"""Callbacks for `fit`."""

from collections.abc import Sequence
import inspect
import os
from typing import Any

import keras

from tfps.training import end_marker


class EvaluatePredictions(keras.callbacks.Callback):
  """Computes metrics from predictions on held-out data, after each epoch.

  `model.fit(x, y, callbacks=[EvaluatePredictions(x2, y2, [ExactAUC()])])`

  Workers predict in parallel, and this process computes the metrics from all
  predictions at once. So metrics that are not additive hold up no worker. Each
  value is logged as `val_` and the metric's name. Callbacks that read it, such
  as `EarlyStopping`, come after this one.

  Args:
    x: the input of `model.predict`; a dataset must keep its order.
    y: the labels, an array.
    metrics: metrics of a model with one output, made for this callback.
    sample_weight: weights of the examples, an array.
    groups: the groups of the examples, an array; given to those metrics whose
      `update_state` has this argument.
    batch_size: the batch size of `model.predict`.

  Raises:
    ValueError: there are no metrics.
  """

  def __init__(
    self,
    x: Any,
    y: Any,
    metrics: Sequence[Any],
    *,
    sample_weight: Any = None,
    groups: Any = None,
    batch_size: int | None = None,
  ) -> None:
    super().__init__()
    if not metrics:
      raise ValueError(
        'EvaluatePredictions: metrics is empty. Give one metric or more.'
      )
    self._x = x
    self._y = y
    self._metrics = list(metrics)
    self._sample_weight = sample_weight
    self._groups = groups
    self._batch_size = batch_size

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    predictions = self.model.predict(
      self._x, batch_size=self._batch_size, verbose=0
    )
    for metric in self._metrics:
      metric.reset_state()
      metric.update_state(
        self._y,
        predictions,
        sample_weight=self._sample_weight,
        **self._groups_of(metric),
      )
      if logs is not None:
        logs[f'val_{metric.name}'] = float(metric.result())

  def _groups_of(self, metric: Any) -> dict[str, Any]:
    """Returns the groups as an argument, if the metric takes them."""
    parameters = inspect.signature(metric.update_state).parameters
    takes_groups = self._groups is not None and 'groups' in parameters
    return {'groups': self._groups} if takes_groups else {}


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
    end_marker.clear(self._directory)

  def on_train_end(self, logs: Any = None) -> None:
    end_marker.mark(self._directory, int(self.model.optimizer.iterations))


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
