"""The functions that Keras' trainer calls where each worker runs the program.

Steps are done in this very process, which has the metrics as well.
"""

from collections.abc import Callable
import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps.input import tracing as input_orders
from tfps.keras import data_adapters
from tfps.keras import split_adapter
from tfps.keras import step_function
from tfps.keras import train_functions


def input_of(strategy: Any, x: Any, steps_per_epoch: int | None) -> Any:
  """What `fit` gets as its input, as Keras takes it.

  A function of an `InputContext` makes this worker's dataset.
  """
  if not data_adapters.is_dataset_fn(x):
    return x
  try:
    return x(strategy.input_context())
  except input_orders.NeedsOrderError:
    return split_adapter.QueueAdapter(
      x,
      lambda _, dataset_fn: strategy.readers(dataset_fn),
      by_epochs=steps_per_epoch is None,
    )


dataset_of = train_functions.dataset_of


class TrainFunction(step_function.StepFunction):
  """Stands for `model.train_function`."""

  def __init__(self, model: keras.Model) -> None:
    super().__init__(
      model,
      model.train_step,
      Here(model.distribute_strategy),
      in_flight=lambda: 0,
      makes_updates=True,
    )

  def leave(self) -> None:
    """Has other workers wait no longer for this one; it is done."""
    sync_session = self._sync_session
    if sync_session is not None:
      self._executor.surviving(lambda: sync_session.end(sync_session.worker()))


class TestFunction(step_function.StepFunction):
  """Stands for `model.test_function`."""

  __test__ = False  # for pytest

  def __init__(self, model: keras.Model) -> None:
    here = Here(model.distribute_strategy)
    super().__init__(model, model.test_step, here, in_flight=lambda: 0)


class PredictFunction(train_functions.PredictFunction):
  """Stands for `model.predict_function`."""

  def __init__(self, model: keras.Model) -> None:
    super().__init__(model, Here(model.distribute_strategy))


class Here:
  """Executes functions in this process, as long as the strategy survives.

  Args:
    strategy: whose `surviving` calls them.
  """

  def __init__(self, strategy: Any) -> None:
    self._strategy = strategy

  def schedule(self, fn: Any, args: Any = None) -> Any:
    return self.surviving(lambda: fn(*args))

  def schedule_through(self, attempt: Any, fn: Any, args: Any) -> Any:
    return self.surviving(lambda: attempt(fn, *args))

  def fetch(self, val: Any) -> Any:
    if val is None:  # others have done it
      return None
    return tf.nest.map_structure(np.asarray, val)

  def surviving(self, function: Callable[[], Any]) -> Any:
    return self._strategy.surviving(function)

  def scheduling(self) -> contextlib.AbstractContextManager[Any]:
    scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
    return scope

  def rest(self) -> None:
    pass  # for nothing is under way

  def cancel(self) -> None:
    pass
