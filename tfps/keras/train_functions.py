"""Functions of Keras' trainer for a coordinator that schedules the steps."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfps.input import readers as readers_lib
from tfps.keras import data_adapters
from tfps.keras import model_building
from tfps.keras import predictions
from tfps.keras import split_adapter
from tfps.keras import step_function
from tfps.training import coordinator as coordinator_lib

_IN_FLIGHT_PER_WORKER = 2

build = model_building.build


def input_of(
  strategy: tf.distribute.Strategy,
  x: Any,
  steps_per_epoch: int | None,
  beside: Mapping[str, Any],
) -> Any:
  """Returns the input of `fit` in a form that Keras accepts.

  Args:
    strategy: the model's strategy; unused.
    x: the input; a function of an `InputContext` makes each worker's dataset.
    steps_per_epoch: the length of an epoch; required for such a function,
      unless it reads from a `SplitQueue`.
    beside: further arguments of `fit`; see `data_adapters.with_weights`.

  Raises:
    ValueError: `x` is such a function and `steps_per_epoch` is None, or an
      argument cannot be given beside it.
  """
  del strategy
  if not data_adapters.is_dataset_fn(x):
    return x
  x = data_adapters.with_weights(x, beside)
  if split_adapter.takes_from_queue(x):
    by_epochs = steps_per_epoch is None
    return split_adapter.QueueAdapter(
      x, readers_lib.WorkerReaders, by_epochs=by_epochs
    )
  check_steps(x, steps_per_epoch)
  return data_adapters.PerWorkerAdapter(x)


def check_steps(dataset_fn: Any, steps_per_epoch: int | None) -> None:
  """Raises ValueError if an epoch of the workers' datasets has no end."""
  if steps_per_epoch is None:
    raise ValueError(
      f'{dataset_fn}: a function of an InputContext makes a dataset for each '
      'worker, and these have no common end. Give steps_per_epoch, or steps.'
    )


def dataset_of(strategy: tf.distribute.Strategy, adapter: Any) -> Any:
  """Returns the object over which Keras' trainer iterates for an epoch.

  Args:
    strategy: that of the model.
    adapter: the data adapter of Keras, or of this package.
  """
  if isinstance(
    adapter, data_adapters.PerWorkerAdapter | split_adapter.QueueAdapter
  ):
    return adapter
  guard = getattr(strategy, 'guard', None)
  surviving = data_adapters.once if guard is None else guard.surviving
  return data_adapters.Batches(adapter.get_tf_dataset(), surviving)


class TrainFunction(step_function.StepFunction):
  """Replaces `model.train_function`."""

  def __init__(self, model: keras.Model) -> None:
    coordinator = coordinator_lib.Coordinator(model.distribute_strategy)
    super().__init__(
      model,
      model.train_step,
      coordinator,
      in_flight=lambda: _IN_FLIGHT_PER_WORKER * coordinator.num_workers,
      makes_updates=True,
    )


class TestFunction(step_function.StepFunction):
  """Replaces `model.test_function`."""

  __test__ = False  # for pytest

  def __init__(self, model: keras.Model) -> None:
    coordinator = coordinator_lib.Coordinator(model.distribute_strategy)
    super().__init__(
      model,
      model.test_step,
      coordinator,
      in_flight=lambda: _IN_FLIGHT_PER_WORKER * coordinator.num_workers,
    )


class PredictFunction(predictions.PredictFunction):
  """Replaces `model.predict_function`."""

  def __init__(self, model: keras.Model) -> None:
    coordinator = coordinator_lib.Coordinator(model.distribute_strategy)
    super().__init__(
      model,
      coordinator,
      in_flight=lambda: _IN_FLIGHT_PER_WORKER * coordinator.num_workers,
    )
