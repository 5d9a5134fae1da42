"""Batches of a dataset that must not run out.

TensorFlow may leave an iterator at, or near, its end when an execution that
uses it is cut short, as by the loss of a ps. A step that then has no batch may
make some of its updates nevertheless. So no iterator outlives an interruption.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps.input import iterators


class RestartableIterator:
  """Batches of this process.

  Args:
    dataset: where they come from.
    num_interruptions: how often executions have been cut short.
  """

  def __init__(
    self, dataset: tf.data.Dataset, num_interruptions: Callable[[], int]
  ) -> None:
    self._dataset = dataset
    self._num_interruptions = num_interruptions
    self._begun_after = num_interruptions()
    self._iterator = iterators.over(dataset)

  @property
  def spec(self) -> Any:
    """The type of its iterators."""
    return tf.data.IteratorSpec(self._dataset.element_spec)

  @property
  def iterator(self) -> Any:
    """A new one, which begins with the dataset, after an interruption."""
    num_interruptions = self._num_interruptions()
    if num_interruptions != self._begun_after:
      self._begun_after = num_interruptions
      self._iterator = iterators.over(self._dataset)
    return self._iterator
