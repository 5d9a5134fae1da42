"""Functions of Keras' trainer for steps whose graph spans all workers.

The chief divides each batch of its input among the workers and calls the
graph.
"""

from collections.abc import Mapping
from typing import Any

import keras

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
    x: the input; a function of an `InputContext` makes each worker's dataset.
    steps_per_epoch: the length of an epoch; required for such a function.
    beside: further arguments of `fit`; see `data_adapters.with_weights`.

  Raises:
    ValueError: `x` is such a function and `steps_per_epoch` is None, or an
      argument cannot be given beside it.
  """
  if not data_adapters.is_dataset_fn(x):
    return x
  x = data_adapters.with_weights(x, beside)
  if split_adapter.takes_from_queue(x):
    return split_adapter.QueueAdapter(
      x,
      lambda _, dataset_fn: strategy.readers(dataset_fn),
      by_epochs=steps_per_epoch is None,
    )
  train_functions.check_steps(x, steps_per_epoch)
  return data_adapters.PerWorkerAdapter(
    x, lambda _, dataset_fn: strategy.batches(dataset_fn)
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
