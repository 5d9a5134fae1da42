"""Means of gradients over all workers, in a function that is being traced.

A sum begins at one place of a step and is waited for at another. The wait
occupies a thread that messages to the ps may need, so all messages that other
workers depend on must have been sent by then.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.updates.allreduce import elastic_group as elastic_group_lib


class GradientMeans:
  """Means of one list of gradients; their sum begins when it is made.

  Args:
    elastic_group: group of workers; None if there is a single worker.
    gradients: gradients of this worker, in the same order on all workers.
  """

  def __init__(
    self,
    elastic_group: elastic_group_lib.ElasticGroup | None,
    gradients: Sequence[tf.Tensor],
  ) -> None:
    self._gradients = list(gradients)
    self._flat: list[tuple[_Flat, list[int]]] = []
    if elastic_group is None:
      return
    by_type: dict[tf.DType, list[int]] = {}
    for i, gradient in enumerate(gradients):
      by_type.setdefault(gradient.dtype, []).append(i)
    for indices in by_type.values():
      own = [tf.reshape(gradients[i], [-1]) for i in indices]
      self._flat.append((_Flat(elastic_group, tf.concat(own, axis=0)), indices))

  def result(self) -> list[tf.Tensor]:
    """Returns the means, in the order and shapes of the gradients."""
    found = list(self._gradients)
    for flat, indices in self._flat:
      sizes = [tf.size(self._gradients[i]) for i in indices]
      for i, part in zip(indices, tf.split(flat.mean(), sizes), strict=True):
        gradient = self._gradients[i]
        found[i] = tf.reshape(part, tf.shape(gradient))
        found[i].set_shape(gradient.shape)
    return found


class _Flat:
  """Mean of the concatenated gradients of one type."""

  def __init__(
    self, elastic_group: elastic_group_lib.ElasticGroup, vector: tf.Tensor
  ) -> None:
    self._elastic_group = elastic_group
    self._vector = vector
    self._begun: Any = None
    self._has_begun = tf.numpy_function(
      self._begin, [vector], tf.bool, stateful=True
    )

  def mean(self) -> tf.Tensor:
    found = tf.numpy_function(
      self._end, [self._has_begun], self._vector.dtype, stateful=True
    )
    return tf.ensure_shape(found, self._vector.shape)

  def _begin(self, vector: np.ndarray) -> np.bool_:
    self._begun = self._elastic_group.begin_mean(vector)
    return np.bool_(True)

  def _end(self, has_begun: np.bool_) -> np.ndarray:
    del has_begun
    begun, self._begun = self._begun, None
    return self._elastic_group.end_mean(begun)
