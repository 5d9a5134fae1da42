"""Means of gradients over all workers, in a function that is being traced.

Adding up begins at one place of a step and is waited for at another. What waits
holds up a thread, in which the ps might be told meanwhile what others wait for:
so nothing is to be left by then that others need.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.updates.allreduce import elastic_group as elastic_group_lib


class GradientMeans:
  """Those of some gradients.

  Args:
    elastic_group: adds them up; None if there is one worker alone.
    gradients: of this worker, in the same order in all of them.
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
    """What comes of it, once all others have given theirs."""
    found = list(self._gradients)
    for flat, indices in self._flat:
      sizes = [tf.size(self._gradients[i]) for i in indices]
      for i, part in zip(indices, tf.split(flat.mean(), sizes), strict=True):
        gradient = self._gradients[i]
        found[i] = tf.reshape(part, tf.shape(gradient))
        found[i].set_shape(gradient.shape)
    return found


class _Flat:
  """One vector, of one type."""

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
