"""Schedules the steps of a model for Keras' `predict`.

Keras calls a function with batches, and puts together what it has returned for
all of them. This one returns promises, for which Keras waits at the end.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import execution_variables
from tfps._compat import functions
from tfps.keras import batch_structures
from tfps.keras import data_adapters
from tfps.keras import executor as executor_lib
from tfps.keras import metric_state as metric_state_lib
from tfps.keras import model_program
from tfps.variables import step_replicas


class PredictFunction:
  """Schedules steps, and returns promises of their outputs.

  Args:
    model: its `predict_step` is executed.
    executor: executes the steps.
    in_flight: returns how many of them may be running when a call returns.
  """

  def __init__(
    self,
    model: keras.Model,
    executor: executor_lib.Executor,
    *,
    in_flight: Callable[[], int],
  ) -> None:
    model_program.check(model)
    self._strategy = model.distribute_strategy
    self._executor = executor
    self._in_flight = in_flight
    self._state = metric_state_lib.State(model)
    self._state.metrics = []  # which a prediction does not update
    self._running: deque[_Execution] = deque()
    self._structure: Any = None
    self._types: list[Any] = []
    self._function = self._make(model)

  def __call__(self, batches: list[Any]) -> Any:
    """Schedules batches; returns their outputs, put together, as promises."""
    taken = data_adapters.take(
      iter(batches), len(batches), self._executor.surviving
    )
    executions = [self._schedule(batch) for batch in taken]
    outputs = [Promise(executions, i) for i in range(len(self._types))]
    return keras.tree.pack_sequence_as(self._structure, outputs)

  def leave(self) -> None:
    """Ends a `predict`, which has waited for its outputs unless it failed."""
    self._running.clear()

  def _schedule(self, batch: Any) -> '_Execution':
    carried = self._state.carry(1)
    divided = batch_structures.divide(batch, self._strategy)
    value = self._executor.schedule(self._function, args=(divided, carried))
    execution = _Execution(self._executor, value, self._types)
    self._running.append(execution)
    if self._state.must_wait(1):
      self._state.store_carried(1, carried, execution.wait()[0])
    while len(self._running) > self._in_flight():
      self._running.popleft().wait()
    return execution

  def _make(self, model: keras.Model) -> Any:
    strategy, state = self._strategy, self._state
    step = functions.python_function(model.predict_step)

    def predict(batch: Any, carried: Any) -> list[tf.Tensor]:
      given = step_replicas.weight_batches(strategy, batch)
      with execution_variables.copies(state.variables):
        state.begin_execution(carried)
        output = strategy.run(step, args=(given,))
        after = state.end_execution()
      outputs = step_replicas.split_results(strategy, output)
      self._structure = outputs[0]
      leaves = [keras.tree.flatten(output) for output in outputs]
      joined = [_join(each) for each in zip(*leaves, strict=True)]
      self._types = [_type_of(output) for output in joined]
      return [after, *tf.nest.flatten(joined, expand_composites=True)]

    return tf.function(
      tf.autograph.experimental.do_not_convert(predict), reduce_retracing=True
    )


class _Execution:
  """The execution of a step, whose result is fetched once.

  Args:
    executor: executes it.
    value: its result, for `Executor.fetch`.
    types: the types of its outputs.
  """

  def __init__(
    self, executor: executor_lib.Executor, value: Any, types: Sequence[Any]
  ) -> None:
    self.types = types
    self._executor = executor
    self._value = value
    self._result: tuple[np.ndarray, list[Any]] | None = None

  def wait(self) -> tuple[np.ndarray, list[Any]]:
    """Waits for a vector of the carried values, and the outputs as tensors."""
    if self._result is None:
      carried, *arrays = self._executor.fetch(self._value)
      self._value = None  # and the worker's copy with it
      with tf.device(None):
        outputs = tf.nest.pack_sequence_as(
          list(self.types),
          [tf.convert_to_tensor(array) for array in arrays],
          expand_composites=True,
        )
      self._result = carried, outputs
    return self._result


class Promise:
  """Output for some batches that workers compute; fetched when it is used.

  Args:
    executions: the steps on the batches.
    index: the index of the output among those of a step.
  """

  def __init__(self, executions: Sequence[_Execution], index: int) -> None:
    self._executions = executions
    self._index = index

  def tfps_wait(self) -> Any:
    """Waits for the value: a dense, ragged or sparse tensor."""
    with tf.device(None):
      return _join([each.wait()[1][self._index] for each in self._executions])

  def numpy(self) -> Any:
    """Waits for the value and returns it; sparse tensors as they are."""
    value = self.tfps_wait()
    return value if isinstance(value, tf.SparseTensor) else value.numpy()

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy
    return np.asarray(self.numpy(), dtype)

  def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
    return tf.convert_to_tensor(self.tfps_wait(), dtype=dtype, name=name)

  def __getitem__(self, key: Any) -> Any:
    return self.tfps_wait()[key]

  def __len__(self) -> int:
    return len(self.numpy())

  def __iter__(self) -> Iterator[Any]:
    return iter(self.numpy())

  @property
  def dtype(self) -> tf.DType:
    """The type of the elements."""
    dtype: tf.DType = self._executions[0].types[self._index].dtype
    return dtype

  @property
  def shape(self) -> tf.TensorShape:
    """The shape of the value, which is waited for."""
    return self.tfps_wait().shape


def _join(parts: Sequence[Any]) -> Any:
  """Puts outputs together as Keras does."""
  if len(parts) == 1:
    return parts[0]
  if isinstance(parts[0], tf.SparseTensor):
    return tf.sparse.concat(0, list(parts))
  if parts[0].shape.rank == 0:
    return tf.stack(parts)
  return tf.concat(parts, axis=0)


def _type_of(output: Any) -> Any:
  """Returns the type of an output for batches of any size."""
  found = tf.type_spec_from_value(output)
  shape = [None] * found.shape.rank if found.shape.rank is not None else None
  if isinstance(output, tf.RaggedTensor):
    return tf.RaggedTensorSpec(
      shape, found.dtype, found.ragged_rank, found.row_splits_dtype
    )
  if isinstance(output, tf.SparseTensor):
    return tf.SparseTensorSpec(shape, found.dtype)
  return tf.TensorSpec(shape, found.dtype)
