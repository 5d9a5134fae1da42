"""Functions of Keras' trainer for a coordinator that schedules the steps."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import functions
from tfps.input import readers as readers_lib
from tfps.keras import batch_structures
from tfps.keras import data_adapters
from tfps.keras import executor as executor_lib
from tfps.keras import model_building
from tfps.keras import model_program
from tfps.keras import split_adapter
from tfps.keras import step_function
from tfps.training import coordinator as coordinator_lib
from tfps.variables import step_replicas

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


class PredictFunction:
  """Replaces `model.predict_function`: schedules steps, and returns promises.

  Args:
    model: workers execute its `predict_step`.
    executor: schedules the steps; by default a coordinator.
  """

  def __init__(
    self, model: keras.Model, executor: executor_lib.Executor | None = None
  ) -> None:
    model_program.check(model)
    self._strategy = model.distribute_strategy
    self._executor = executor or coordinator_lib.Coordinator(self._strategy)
    self._structure: Any = None
    self._function = self._make(model)

  def __call__(self, batches: list[Any]) -> Any:
    """Schedules batches; returns their concatenated outputs as promises."""
    taken = data_adapters.take(
      iter(batches), len(batches), self._executor.surviving
    )
    values = [
      self._executor.schedule(
        self._function, args=(batch_structures.divide(batch, self._strategy),)
      )
      for batch in taken
    ]
    outputs = [
      Promise(self._executor, values, i)
      for i in range(len(keras.tree.flatten(self._structure)))
    ]
    return keras.tree.pack_sequence_as(self._structure, outputs)

  def _make(self, model: keras.Model) -> Any:
    strategy = self._strategy
    step = functions.python_function(model.predict_step)

    def predict(batch: Any) -> list[tf.Tensor]:
      given = step_replicas.weight_batches(strategy, batch)
      output = strategy.run(step, args=(given,))
      outputs = step_replicas.split_results(strategy, output)
      self._structure = outputs[0]
      leaves = [keras.tree.flatten(output) for output in outputs]
      return [tf.concat(each, axis=0) for each in zip(*leaves, strict=True)]

    return tf.function(
      tf.autograph.experimental.do_not_convert(predict), reduce_retracing=True
    )


class Promise:
  """Output for some batches that workers compute; fetched when it is used.

  Args:
    executor: executes the steps.
    values: the results of the batches, for `Executor.fetch`.
    index: the index of the output among those of a step.
  """

  def __init__(
    self, executor: executor_lib.Executor, values: list[Any], index: int
  ) -> None:
    self._executor = executor
    self._values = values
    self._index = index

  def numpy(self) -> np.ndarray:
    """Waits for the value and returns it."""
    found = [self._executor.fetch(v)[self._index] for v in self._values]
    return np.concatenate(found)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy
    return np.asarray(self.numpy(), dtype)

  def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
    return tf.convert_to_tensor(self.numpy(), dtype=dtype, name=name)

  @property
  def shape(self) -> tf.TensorShape:
    """The shape of the value, which is waited for."""
    return tf.TensorShape(self.numpy().shape)
