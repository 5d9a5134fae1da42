"""The functions that Keras' trainer calls where one graph spans all workers.

The chief takes batches from its input, divides each among the workers, and
calls the graph.
"""

from typing import Any

import keras

from tfps.keras import client_functions
from tfps.keras import data_adapters
from tfps.keras import split_adapter
from tfps.keras import step_function
from tfps.keras import train_functions


def input_of(strategy: Any, x: Any, steps_per_epoch: int | None) -> Any:
  """What `fit` gets as its input, as Keras takes it; see `functions`.

  Raises:
    ValueError: its datasets have no common end and there is no number of
      steps.
  """
  if not data_adapters.is_dataset_fn(x):
    return x
  if split_adapter.takes_from_queue(x):
    return split_adapter.QueueAdapter(
      x,
      lambda _, dataset_fn: strategy.readers(dataset_fn),
      by_epochs=steps_per_epoch is None,
    )
  train_functions.check_steps(x, steps_per_epoch)
  return data_adapters.PerWorkerAdapter(
    x, lambda _, dataset_fn: strategy.batches(dataset_fn).iterator
  )


dataset_of = train_functions.dataset_of


class TrainFunction(step_function.StepFunction):
  """Stands for `model.train_function`."""

  def __init__(self, model: keras.Model) -> None:
    super().__init__(
      model,
      model.train_step,
      client_functions.Here(model.distribute_strategy),
      in_flight=lambda: 0,
      makes_updates=True,
    )


class TestFunction(step_function.StepFunction):
  """Stands for `model.test_function`."""

  __test__ = False  # for pytest

  def __init__(self, model: keras.Model) -> None:
    here = client_functions.Here(model.distribute_strategy)
    super().__init__(model, model.test_step, here, in_flight=lambda: 0)


class PredictFunction(train_functions.PredictFunction):
  """Stands for `model.predict_function`."""

  def __init__(self, model: keras.Model) -> None:
    super().__init__(model, client_functions.Here(model.distribute_strategy))
