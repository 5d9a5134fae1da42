"""Functions of Keras' trainer for workers that add up gradients.

Each worker executes the steps of `fit` on its part of each batch. `evaluate`
and `predict` do all batches on each worker.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfps.keras import batch_structures
from tfps.keras import client_functions
from tfps.keras import data_adapters
from tfps.keras import train_functions
from tfps.variables import step_replicas


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
  found = client_functions.input_of(strategy, x, steps_per_epoch, beside)
  if found is x or not isinstance(found, tf.data.Dataset):
    return found
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = (
    tf.data.experimental.AutoShardPolicy.OFF
  )
  return found.with_options(options)


build = train_functions.build
dataset_of = train_functions.dataset_of


class TrainFunction(client_functions.TrainFunction):
  """Replaces `model.train_function`."""

  def __init__(self, model: keras.Model) -> None:
    super().__init__(model)
    strategy = model.distribute_strategy
    strategy.sync_session.set_position(int(model.optimizer.iterations.numpy()))

  def __call__(self, batches: Iterator[Any]) -> dict[str, Any]:
    if isinstance(
      batches, data_adapters.Taking
    ) and self._strategy.shares.divide(batches.dataset):
      batches = _Parts(batches, self._strategy)
    return super().__call__(batches)


class _Parts(data_adapters.Taking):
  """Iterator over this worker's parts of batches."""

  def __init__(self, batches: data_adapters.Taking, strategy: Any) -> None:
    super().__init__(batches, batches.dataset)
    self._strategy = strategy

  def __next__(self) -> step_replicas.Weighted:
    return batch_structures.part(
      super().__next__(), *self._strategy.shares.rank_and_size()
    )


TestFunction = client_functions.TestFunction
PredictFunction = client_functions.PredictFunction
