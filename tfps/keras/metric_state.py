"""Metrics and seeds that the chief keeps and workers' executions update.

An execution on a worker starts each step with metrics of zero, and returns what
each step has added. The chief adds these values in the order of the steps, as a
single process does, so that the result does not depend on the workers.

Metrics that are not additive, such as a maximum, are carried from one execution
to the next, and so are the states of seeds. The seeds after an execution are
known in advance; such metrics are not, so executions wait for one another.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import execution_variables
from tfps._compat import keras as keras_compat
from tfps._compat import keras_variables
from tfps.variables import step_replicas

_LONG = (tf.int64, tf.uint64)


class State:
  """A model's metrics and seeds, which are not on the ps.

  They may have been made outside of the strategy's scope.

  Args:
    model: a built model.

  Attributes:
    metrics: variables of additive metrics.
    chained: variables of other metrics.
    seeds: the states of seed generators.
  """

  def __init__(self, model: keras.Model) -> None:
    metrics = [v for m in model.metrics for v in m.variables]
    for variable in [*metrics, *filter(_is_seed, model.variables)]:
      keras_variables.keep_here(variable)
    self.metrics = _local(metrics)
    self.chained: list[tf.Variable] = []
    self.seeds = _local(model.variables)
    self._model = model
    self._strides: dict[int, list[np.ndarray]] = {}

  @property
  def variables(self) -> list[tf.Variable]:
    """All variables of metrics and seed generators."""
    return [*self.metrics, *self.carried]

  @property
  def carried(self) -> list[tf.Variable]:
    """The variables that are carried from one execution to the next."""
    return [*self.chained, *self.seeds]

  @property
  def carried_spec(self) -> list[tf.TensorSpec]:
    """The types of the carried values."""
    return [tf.TensorSpec(v.shape, v.dtype) for v in self.carried]

  @property
  def sizes(self) -> tuple[int, int]:
    """Lengths of the vectors of what a step adds to metrics, and is carried."""
    return _num_elements(self.metrics), _num_elements(self.carried)

  def chain(self, variables: Sequence[tf.Variable]) -> None:
    """Records that variables of metrics are not additive."""
    chained = {id(variable) for variable in variables}
    self.metrics = [v for v in self.metrics if id(v) not in chained]
    self.chained.extend(variables)

  # Methods of a worker's execution.

  def begin_execution(self, carried: Sequence[tf.Tensor]) -> None:
    """Assigns the carried values to the execution's copies."""
    for variable, value in zip(self.carried, carried, strict=True):
      variable.assign(value)

  def begin_step(self) -> None:
    """Sets the copies of the metrics to zero."""
    for variable in self.metrics:
      variable.assign(tf.zeros(variable.shape, variable.dtype))

  def end_step(self) -> tf.Tensor:
    """Returns what the step has added to the metrics, as one vector."""
    return _pack([variable.read_value() for variable in self.metrics])

  def end_execution(self) -> tf.Tensor:
    """Returns the carried values, as one vector."""
    return _pack([variable.read_value() for variable in self.carried])

  # Methods of the chief.

  def carry(self, num_steps: int) -> list[np.ndarray]:
    """Returns values for the next execution, with seeds of its own."""
    values = [variable.own_value() for variable in self.carried]
    if self.seeds and num_steps in self._strides:
      seeds = values[len(self.chained) :]
      self._assign_seeds(_add(seeds, self._strides[num_steps]))
    return values

  def must_wait(self, num_steps: int) -> bool:
    """Returns whether the execution after one of `num_steps` waits for it."""
    seeds_are_known = not self.seeds or num_steps in self._strides
    return bool(self.chained) or not seeds_are_known

  def merged(self, logs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns a step's logs with the current values of metrics."""
    # A replica returns metrics without the values of the replicas after it.
    replicas = step_replicas.of(self._model.distribute_strategy)
    if not self.variables and not replicas.are_several:
      return logs  # the step has updated the metrics themselves
    values: dict[str, Any] = {}
    for metric in self._model.metrics:
      result = metric.result()
      values.update(
        result if isinstance(result, dict) else {metric.name: result}
      )
    return {**logs, **{name: values[name] for name in logs if name in values}}

  def store_carried(
    self,
    num_steps: int,
    before: list[np.ndarray],
    after: np.ndarray,
    *,
    num_done: int | None = None,
  ) -> None:
    """Stores the carried values that an execution returned.

    Args:
      num_steps: the number of steps that it was to do.
      before: the carried values that it got.
      after: a vector of those that it returned.
      num_done: the number of steps that it did, if not all.
    """
    values = self.unpack(after)
    number = len(self.chained)
    for variable, value in zip(self.chained, values[:number], strict=True):
      variable.set_own_value(value)
    if num_steps not in self._strides:
      old, new = before[number:], values[number:]
      self._assign_seeds(new)
      if num_done in (None, num_steps):
        strides = [n - o for n, o in zip(new, old, strict=True)]
        self._strides[num_steps] = strides

  def unpack(self, vector: np.ndarray) -> list[np.ndarray]:
    """Returns the carried values in a vector."""
    return _unpack(vector, self.carried)

  def add(self, steps: np.ndarray) -> None:
    """Adds the values of steps, one row for each, to the metrics in order."""
    for variable, added in zip(
      self.metrics, _columns(steps, self.metrics), strict=True
    ):
      terms = np.concatenate([variable.own_value().reshape([1, -1]), added])
      # Unlike `np.sum`, it adds the rows in their order.
      total = np.add.accumulate(terms, axis=0, dtype=terms.dtype)[-1]
      variable.set_own_value(total.reshape(variable.shape.as_list()))

  def _assign_seeds(self, values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(self.seeds, values, strict=True):
      variable.set_own_value(value)


def _add(
  terms: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> list[np.ndarray]:
  return [term + other for term, other in zip(terms, others, strict=True)]


def _is_seed(variable: Any) -> bool:
  return keras_compat.is_seed_state({'name': variable.name})


def _local(variables: Any) -> list[tf.Variable]:
  """Returns the Keras variables that this process holds, each once."""
  values = {id(v): v.value for v in variables}.values()
  is_local = execution_variables.ExecutionVariable
  return [value for value in values if isinstance(value, is_local)]


def _num_doubles(variable: tf.Variable) -> int:
  """Returns how many numbers of a vector a variable's value takes."""
  return int(variable.shape.num_elements()) * (1 + (variable.dtype in _LONG))


def _num_elements(variables: Sequence[tf.Variable]) -> int:
  return sum(map(_num_doubles, variables))


def _pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
  flat = [_doubles(value) for value in values]
  return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)


def _doubles(value: tf.Tensor) -> tf.Tensor:
  """Returns a value as doubles, of which sums are those of the values.

  A double holds every value of all types but long integers. These have their
  upper halves first, and then their lower ones.
  """
  value = tf.reshape(value, [-1])
  if value.dtype in _LONG:
    value = tf.bitcast(value, tf.int64)
    upper = tf.bitwise.right_shift(value, tf.constant(32, tf.int64))
    lower = tf.bitwise.bitwise_and(value, tf.constant(2**32 - 1, tf.int64))
    value = tf.concat([upper, lower], axis=0)
  return tf.cast(value, tf.float64)


def _values(doubles: np.ndarray, dtype: tf.DType) -> np.ndarray:
  """Returns the values of rows of doubles."""
  if dtype not in _LONG:
    return doubles.astype(dtype.as_numpy_dtype)
  upper, lower = np.split(doubles.astype(np.int64), 2, axis=1)
  return ((upper << 32) + lower).view(dtype.as_numpy_dtype)


def _unpack(
  vector: np.ndarray, variables: Sequence[tf.Variable]
) -> list[np.ndarray]:
  columns = _columns(vector[np.newaxis], variables)
  return [
    column.reshape(variable.shape.as_list())
    for column, variable in zip(columns, variables, strict=True)
  ]


def _columns(
  vectors: np.ndarray, variables: Sequence[tf.Variable]
) -> list[np.ndarray]:
  """Returns for each variable its elements in each row of the vectors."""
  ends = np.cumsum(list(map(_num_doubles, variables)), dtype=int)
  columns = np.split(vectors, ends[:-1], axis=1) if variables else []
  return [
    _values(column, variable.dtype)
    for column, variable in zip(columns, variables, strict=True)
  ]
