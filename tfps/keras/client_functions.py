"""Functions of Keras' trainer for workers that each run the program.

Steps are executed in this process, which also keeps the metrics.
"""

from collections.abc import Mapping
from typing import Any

import keras

from tfps.input import tracing as input_orders
from tfps.keras import data_adapters
from tfps.keras import executor
from tfps.keras import predictions
from tfps.keras import split_adapter
from tfps.keras import step_function
from tfps.keras import train_functions


def input_of(
  strategy: Any,
  x: Any,
  steps_per_epoch: int | None,
  beside: Mapping[str, Any],
) -> Any:
  """Returns the input of `fit` in a form that Keras accepts.

  Args:
    strategy: the model's strategy.
    x: the input; a function of an `InputContext` is called to make this
      worker's dataset.
    steps_per_epoch: the length of an epoch; None until the data ends.
    beside: further arguments of `fit`; see `data_adapters.with_weights`.

  Raises:
    ValueError: an argument cannot be given beside a function.
  """
  if not data_adapters.is_dataset_fn(x):
    return x
  weighted = data_adapters.with_weights(x, beside)
  try:
    return x(strategy.input_context())  # Keras adds the weights of classes
  except input_orders.NeedsOrderError:
    return split_adapter.QueueAdapter(
      weighted,
      lambda _, dataset_fn: strategy.readers(dataset_fn),
      by_epochs=steps_per_epoch is None,
    )


build = train_functions.build
dataset_of = train_functions.dataset_of


class TrainFunction(step_function.StepFunction):
  """Replaces `model.train_function`."""

  def __init__(self, model: keras.Model) -> None:
    super().__init__(
      model,
      model.train_step,
      executor.Here(model.distribute_strategy),
      in_flight=lambda: 0,
      makes_updates=True,
    )

  def leave(self) -> None:
    """Tells the other workers not to wait for this one any more."""
    super().leave()
    sync_session = self._sync_session
    if sync_session.waits:
      self._executor.surviving(lambda: sync_session.end(sync_session.worker()))


class TestFunction(step_function.StepFunction):
  """Replaces `model.test_function`."""

  __test__ = False  # for pytest

  def __init__(self, model: keras.Model) -> None:
    here = executor.Here(model.distribute_strategy)
    super().__init__(model, model.test_step, here, in_flight=lambda: 0)


class PredictFunction(predictions.PredictFunction):
  """Replaces `model.predict_function`."""

  def __init__(self, model: keras.Model) -> None:
    here = executor.Here(model.distribute_strategy)
    super().__init__(model, here, in_flight=lambda: 0)
