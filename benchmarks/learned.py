"""The examples' models, to be trained as the made-up ones are."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks import problems

Batch = tuple[Any, tf.Tensor]


class Learned:
  """What to train: a model and its data; it is made when it is asked for.

  Args:
    problem: makes them.
  """

  def __init__(self, problem: Callable[..., problems.Problem]) -> None:
    self._make = problem
    self._problem: problems.Problem | None = None
    self._model: Any = None

  def variables(self) -> list[Any]:
    """Those of the model, which is made."""
    self._problem = self._make(quick=True)
    self._model = self._problem.build()
    return list(self._model.trainable_variables)

  @property
  def optimizer(self) -> Any:
    """That which the model was compiled with."""
    return self._model.optimizer

  def gradients(
    self, variables: list[Any], batch: Batch
  ) -> list[tf.Tensor | tf.IndexedSlices]:
    x, y = batch
    model = self._model
    with tf.GradientTape() as tape:
      loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    return tape.gradient(loss, variables)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One worker's endless batches."""
    assert self._problem is not None
    return self._problem.dataset(context)
