"""The functions that Keras' trainer calls, with a coordinator behind them.

`fit` calls its train function with an iterator and expects the steps done when
it returns. Ours takes the batches from the iterator, schedules the steps and
returns while workers do them. What they hand back is taken in, in order, as
time goes on; whoever reads metrics waits for all of it.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps import coordinator as coordinator_lib
from tfps import execution as tf_execution
from tfps.keras import execution
from tfps.keras import inputs
from tfps.keras import state as state_lib
from tfps.wire import transfers

_IN_FLIGHT_PER_WORKER = 2


def input_of(
  strategy: tf.distribute.Strategy, x: Any, steps_per_epoch: int | None
) -> Any:
  """What `fit` gets as its input, as Keras takes it.

  Raises:
    ValueError: it is a function of an `InputContext`, whose datasets have no
      common end, and there is no number of steps.
  """
  del strategy
  if not inputs.is_dataset_fn(x):
    return x
  if steps_per_epoch is None:
    raise ValueError(
      f'{x}: a function of an InputContext makes a dataset for each worker, '
      'and these have no common end. Give steps_per_epoch, or steps.'
    )
  return inputs.PerWorkerAdapter(x)


def dataset_of(adapter: Any) -> Any:
  """What Keras' trainer iterates over, which it calls a dataset."""
  if isinstance(adapter, inputs.PerWorkerAdapter):
    return adapter
  return inputs.Batches(adapter.get_tf_dataset())


@dataclasses.dataclass(frozen=True)
class _Scheduled:
  """An execution that is under way."""

  value: Any
  num_steps: int
  handed_on: list[np.ndarray]


class _StepFunction:
  """Schedules the steps of a model on workers; called by Keras' trainer."""

  _step_name: str

  def __init__(self, model: keras.Model) -> None:
    _check(model)
    strategy = model.distribute_strategy
    self._model = model
    self._coordinator = coordinator_lib.Coordinator(strategy)
    self._transfers = transfers.of(strategy)
    self._state = state_lib.State(model)
    self._executions = execution.Executions(
      strategy, getattr(model, self._step_name), self._state
    )
    self._under_way: deque[_Scheduled] = deque()
    # Keras keeps what it is given and looks at it at the end of an epoch.
    self._logs: dict[str, Any] = {}

  def __call__(self, batches: Iterator[Any]) -> dict[str, Any]:
    """Schedules up to `steps_per_execution` steps.

    Raises:
      StopIteration: there are no more batches.
    """
    number = self._model.steps_per_execution
    if isinstance(batches, inputs.PerWorkerBatches):
      iterators = batches.iterators(self._coordinator)
      for size in _sizes(number):
        self._schedule(self._executions.on_iterator, iterators, size)
      return self._logs
    taken = inputs.take(batches, number)
    full = min(number, tf_execution.MAX_UNROLL)
    for group in inputs.group(taken, full):
      self._schedule(
        self._executions.on_batches, inputs.stack(group), len(group)
      )
    if not isinstance(batches, inputs.Taking):  # a single batch, of the user's
      self.drain()
    return self._logs

  def drain(self) -> None:
    """Waits for all that is under way, and takes it in."""
    while self._under_way:
      self._take_in()

  def _schedule(
    self, function: Callable[[int], Any], batches: Any, num_steps: int
  ) -> None:
    limit = _IN_FLIGHT_PER_WORKER * self._coordinator.num_workers
    while len(self._under_way) >= limit:
      self._take_in()
    try:
      self._schedule_now(function(num_steps), batches, num_steps)
    except execution.NotAdditiveError:
      self.drain()
      self._executions.forget()
      self._schedule_now(function(num_steps), batches, num_steps)
    if self._state.must_wait(num_steps):
      self.drain()

  def _schedule_now(self, function: Any, batches: Any, num_steps: int) -> None:
    handed_on = self._state.hand_on(num_steps)
    with self._forgetting():
      value = transfers.traced(
        lambda: self._coordinator.schedule(function, args=(batches, handed_on))
      )
    self._under_way.append(_Scheduled(value, num_steps, handed_on))

  def _take_in(self) -> None:
    """Takes in the result of the oldest execution."""
    oldest = self._under_way.popleft()
    with self._forgetting():
      result = self._executions.result(self._coordinator.fetch(oldest.value))
    self._state.take_back(oldest.num_steps, oldest.handed_on, result.handed_on)
    self._state.add(result.metrics)
    self._transfers.count(result.num_bytes, oldest.num_steps)
    self._logs.clear()
    self._logs.update(self._merged(result.logs))

  @contextlib.contextmanager
  def _forgetting(self) -> Iterator[None]:
    """After an error nothing is under way, so that another `fit` can begin."""
    try:
      yield
    except execution.NotAdditiveError:
      raise
    except BaseException:
      self._under_way.clear()
      self._coordinator.cancel()
      raise

  def _merged(self, logs: dict[str, np.ndarray]) -> dict[str, Any]:
    """A step's logs, with metrics as they are by now."""
    return {**logs, **self._metrics_among(logs)}

  def _metrics_among(self, logs: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for metric in self._model.metrics:
      result = metric.result()
      results.update(
        result if isinstance(result, dict) else {metric.name: result}
      )
    return {name: results[name] for name in logs if name in results}


def _sizes(number: int) -> Iterator[int]:
  """Cuts a number of steps into what is laid out in one graph."""
  while number > 0:
    yield min(number, tf_execution.MAX_UNROLL)
    number -= tf_execution.MAX_UNROLL


class TrainFunction(_StepFunction):
  """Stands for `model.train_function`."""

  _step_name = 'train_step'


class TestFunction(_StepFunction):
  """Stands for `model.test_function`."""

  _step_name = 'test_step'
  __test__ = False  # for pytest


class PredictFunction:
  """Stands for `model.predict_function`: schedules, and promises outputs."""

  def __init__(self, model: keras.Model) -> None:
    _check(model)
    self._coordinator = coordinator_lib.Coordinator(model.distribute_strategy)
    self._structure: Any = None
    self._function = self._make(model)

  def __call__(self, batches: list[Any]) -> Any:
    """The outputs for some batches, joined, as structures of `Promise`."""
    taken = inputs.take(iter(batches), len(batches))
    value = self._coordinator.schedule(self._function, args=(taken,))
    outputs = [
      Promise(self._coordinator, value, i)
      for i in range(len(keras.tree.flatten(self._structure)))
    ]
    return keras.tree.pack_sequence_as(self._structure, outputs)

  def _make(self, model: keras.Model) -> Any:
    strategy = model.distribute_strategy

    def predict(batches: list[Any]) -> list[tf.Tensor]:
      outputs = [
        strategy.run(model.predict_step, args=(batch,)) for batch in batches
      ]
      self._structure = outputs[0]
      leaves = [keras.tree.flatten(output) for output in outputs]
      return [tf.concat(each, axis=0) for each in zip(*leaves, strict=True)]

    return tf.function(
      tf.autograph.experimental.do_not_convert(predict), reduce_retracing=True
    )


class Promise:
  """A tensor that a worker computes; fetched once somebody looks at it."""

  def __init__(
    self, coordinator: coordinator_lib.Coordinator, value: Any, index: int
  ) -> None:
    self._coordinator = coordinator
    self._value = value
    self._index = index

  def numpy(self) -> np.ndarray:
    """Its value, once it is there."""
    found = self._coordinator.fetch(self._value)[self._index]
    return np.asarray(found)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy
    return np.asarray(self.numpy(), dtype)

  def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
    return tf.convert_to_tensor(self.numpy(), dtype=dtype, name=name)

  @property
  def shape(self) -> tf.TensorShape:
    return tf.TensorShape(self.numpy().shape)


def _check(model: keras.Model) -> None:
  for name in ('jit_compile', 'run_eagerly'):
    if getattr(model, name):
      raise ValueError(
        f'{model.name}: compiled with {name}=True, but its steps run in graphs '
        'on workers whose variables are on other tasks. Compile it with '
        f'{name}=False.'
      )
