"""Metrics and seeds: kept by the chief, worked on by workers.

A worker's execution begins each step with metrics at zero, and hands back what
each step has added. The chief adds these up in the order of the steps, as a
single process would, so that the result does not depend on who did them.
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
  """

  def __init__(self, model: keras.Model) -> None:
    self.metrics = _local(v for m in model.metrics for v in m.variables)
    self.seeds = _local(model.variables)
    self._strides: dict[int, list[np.ndarray]] = {}

  @property
  def variables(self) -> list[tf.Variable]:
    return [*self.metrics, *self.seeds]

  # Within an execution.

  def begin_execution(self, seeds: Sequence[tf.Tensor]) -> None:
    """Gives the copies of the seeds their values."""
    for variable, value in zip(self.seeds, seeds, strict=True):
      variable.assign(value)

  def begin_step(self) -> None:
    """Puts the copies of the metrics at zero."""
    for variable in self.metrics:
      variable.assign(tf.zeros(variable.shape, variable.dtype))

  def end_step(self) -> tf.Tensor:
    """What the step has added to the metrics, as one vector."""
    return _pack([variable.read_value() for variable in self.metrics])

  def end_execution(self) -> tf.Tensor:
    """The seeds as the execution leaves them, as one vector."""
    return _pack([variable.read_value() for variable in self.seeds])

  # In the chief.

  def take_seeds(self, num_steps: int) -> list[np.ndarray]:
    """Seeds for the next execution, which no other execution gets.

    They are where a single process would be by then, once an execution of as
    many steps has shown how far it takes them.
    """
    seeds = [variable.numpy() for variable in self.seeds]
    strides = self._strides.get(num_steps)
    if strides is not None:
      for variable, seed, stride in zip(
        self.seeds, seeds, strides, strict=True
      ):
        variable.assign(seed + stride)
    return seeds

  def knows_strides(self, num_steps: int) -> bool:
    """Whether an execution of so many steps has been seen to its end."""
    return not self.seeds or num_steps in self._strides

  def learn_strides(
    self, num_steps: int, before: list[np.ndarray], after: np.ndarray
  ) -> None:
    """Learns from an execution how far it takes the seeds."""
    if not self.knows_strides(num_steps):
      values = _unpack(after, self.seeds)
      self._strides[num_steps] = [
        value - seed for value, seed in zip(values, before, strict=True)
      ]
      for variable, value in zip(self.seeds, values, strict=True):
        variable.assign(value)

  def add(self, steps: np.ndarray) -> None:
    """Adds what steps have added to the metrics, one after another."""
    totals = [variable.numpy() for variable in self.metrics]
    for step in steps:
      for i, value in enumerate(_unpack(step, self.metrics)):
        totals[i] = totals[i] + value
    for variable, total in zip(self.metrics, totals, strict=True):
      variable.assign(total)


def _local(variables: Any) -> list[tf.Variable]:
  """Those of Keras' variables that this process holds, each once."""
  values = {id(v): v.value for v in variables}.values()
  is_local = execution_variables.ExecutionVariable
  return [value for value in values if isinstance(value, is_local)]


def _pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
  # A double holds every value of the types that Keras uses here.
  flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
  return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)


def _unpack(
  vector: np.ndarray, variables: Sequence[tf.Variable]
) -> list[np.ndarray]:
  values, start = [], 0
  for variable in variables:
    end = start + variable.shape.num_elements()
    dtype = variable.dtype.as_numpy_dtype
    values.append(
      vector[start:end].astype(dtype).reshape(variable.shape.as_list())
    )
    start = end
  return values
