"""Metrics and seeds: kept by the chief, worked on by workers.

A worker's execution begins each step with metrics at zero, and hands back what
each step has added. The chief adds these up in the order of the steps, as a
single process would, so that the result does not depend on who did them.

Metrics that do not add up, such as a maximum, are handed on from one execution
to the next instead, and so are the states of seeds. How far an execution takes
seeds can be foretold; what it makes of such metrics cannot, so that executions
then have to wait for one another.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import execution_variables


class State:
  """The variables of a model that do not live on a ps.

  Args:
    model: a built model.

  Attributes:
    metrics: those that add up.
    chained: metrics that do not.
    seeds: the states of seed generators.
  """

  def __init__(self, model: keras.Model) -> None:
    self.metrics = _local(v for m in model.metrics for v in m.variables)
    self.chained: list[tf.Variable] = []
    self.seeds = _local(model.variables)
    self._strides: dict[int, list[np.ndarray]] = {}

  @property
  def variables(self) -> list[tf.Variable]:
    return [*self.metrics, *self.handed_on]

  @property
  def handed_on(self) -> list[tf.Variable]:
    """What one execution leaves to the next."""
    return [*self.chained, *self.seeds]

  @property
  def handed_on_spec(self) -> list[tf.TensorSpec]:
    """The type of what is handed on."""
    return [tf.TensorSpec(v.shape, v.dtype) for v in self.handed_on]

  @property
  def num_added(self) -> int:
    """The elements of what a step has added to the metrics."""
    return _num_elements(self.metrics)

  @property
  def num_handed_on(self) -> int:
    """The elements of what is handed on."""
    return _num_elements(self.handed_on)

  def chain(self, variables: Sequence[tf.Variable]) -> None:
    """Takes note that metrics do not add up."""
    chained = {id(variable) for variable in variables}
    self.metrics = [v for v in self.metrics if id(v) not in chained]
    self.chained.extend(variables)

  # Within an execution.

  def begin_execution(self, handed_on: Sequence[tf.Tensor]) -> None:
    """Gives the copies of what is handed on their values."""
    for variable, value in zip(self.handed_on, handed_on, strict=True):
      variable.assign(value)

  def begin_step(self) -> None:
    """Puts the copies of the metrics at zero."""
    for variable in self.metrics:
      variable.assign(tf.zeros(variable.shape, variable.dtype))

  def end_step(self) -> tf.Tensor:
    """What the step has added to the metrics, as one vector."""
    return _pack([variable.read_value() for variable in self.metrics])

  def end_execution(self) -> tf.Tensor:
    """What is handed on, as one vector."""
    return _pack([variable.read_value() for variable in self.handed_on])

  # In the chief.

  def hand_on(self, num_steps: int) -> list[np.ndarray]:
    """Values for the next execution; seeds that no other execution gets."""
    values = [variable.numpy() for variable in self.handed_on]
    if self.seeds and num_steps in self._strides:
      seeds = values[len(self.chained) :]
      self._assign_seeds(_add(seeds, self._strides[num_steps]))
    return values

  def must_wait(self, num_steps: int) -> bool:
    """Whether the next execution needs the result of one of so many steps."""
    seeds_are_known = not self.seeds or num_steps in self._strides
    return bool(self.chained) or not seeds_are_known

  def take_back(
    self,
    num_steps: int,
    before: list[np.ndarray],
    after: np.ndarray,
    *,
    num_done: int | None = None,
  ) -> None:
    """Takes in what an execution has made of what was handed on.

    Args:
      num_steps: how many it was for.
      before: what it was handed.
      after: what it handed back.
      num_done: how many it did, if not all.
    """
    values = self.unpack(after)
    number = len(self.chained)
    for variable, value in zip(self.chained, values[:number], strict=True):
      variable.assign(value)
    if num_steps not in self._strides:
      old, new = before[number:], values[number:]
      self._assign_seeds(new)
      if num_done in (None, num_steps):
        strides = [n - o for n, o in zip(new, old, strict=True)]
        self._strides[num_steps] = strides

  def unpack(self, vector: np.ndarray) -> list[np.ndarray]:
    """The values of what is handed on, of a vector that has them all."""
    return _unpack(vector, self.handed_on)

  def add(self, steps: np.ndarray) -> None:
    """Adds what steps have added to the metrics, one after another."""
    for variable, added in zip(
      self.metrics, _columns(steps, self.metrics), strict=True
    ):
      terms = np.concatenate([np.reshape(variable.numpy(), [1, -1]), added])
      # Unlike a sum, it adds up the rows in their order.
      total = np.add.accumulate(terms, axis=0, dtype=terms.dtype)[-1]
      variable.assign(np.reshape(total, variable.shape))

  def _assign_seeds(self, values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(self.seeds, values, strict=True):
      variable.assign(value)


def _add(
  terms: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> list[np.ndarray]:
  return [term + other for term, other in zip(terms, others, strict=True)]


def _local(variables: Any) -> list[tf.Variable]:
  """Those of Keras' variables that this process holds, each once."""
  values = {id(v): v.value for v in variables}.values()
  is_local = execution_variables.ExecutionVariable
  return [value for value in values if isinstance(value, is_local)]


def _num_elements(variables: Sequence[tf.Variable]) -> int:
  return sum(int(v.shape.num_elements()) for v in variables)


def _pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
  # A double holds every value of the types that Keras uses here.
  flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
  return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)


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
  """Of each vector, a row, the elements of each variable."""
  ends = np.cumsum([v.shape.num_elements() for v in variables], dtype=int)
  columns = np.split(vectors, ends[:-1], axis=1) if variables else []
  return [
    column.astype(variable.dtype.as_numpy_dtype)
    for column, variable in zip(columns, variables, strict=True)
  ]
