"""Shapes of tensors whose numbers of rows are sent along with them."""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

COUNT = tf.int64


class Shapes:
  """The static shapes of tensors, to be completed by the receiver.

  Graphs of many embeddings consist mostly of this, so it takes few operations.

  Args:
    tensors: the tensors; only their first dimension may be unknown.

  Attributes:
    known: the static shapes; None for an unknown number of rows.
    num_unknown: how many numbers of rows are unknown.
  """

  def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
    self.known = [tensor.shape.as_list() for tensor in tensors]
    self._unknown = [i for i, each in enumerate(self.known) if None in each]
    self.num_unknown = len(self._unknown)
    self._targets: dict[tuple[int, ...], tf.Tensor] = {}

  def counts(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the unknown numbers of rows: int64 of shape [num_unknown]."""
    shapes = [tf.shape(tensors[i], out_type=COUNT) for i in self._unknown]
    first = np.cumsum([0, *(len(self.known[i]) for i in self._unknown)])[:-1]
    return tf.gather(tf.concat(shapes, axis=0), first)

  def sizes(
    self, indices: Sequence[int], counts: tf.Tensor | None
  ) -> list[int] | tf.Tensor:
    """Returns the numbers of elements of some of the tensors.

    Args:
      indices: of the tensors.
      counts: the received numbers of rows; None if none are unknown.

    Returns:
      A list if all are static, else an int64 tensor of shape [len(indices)].
    """
    factors = [
      math.prod(n for n in self.known[i] if n is not None) for i in indices
    ]
    if not any(None in self.known[i] for i in indices):
      return factors
    place = {i: k for k, i in enumerate(self._unknown)}
    counted = tf.concat([counts, tf.constant([1], COUNT)], axis=0)
    rows = tf.gather(counted, [place.get(i, self.num_unknown) for i in indices])
    return rows * tf.constant(factors, COUNT)

  def restore(
    self, index: int, flat: tf.Tensor, counts: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns a tensor of which only the elements have been received.

    Args:
      index: of the tensor.
      flat: its elements, of shape [size].
      counts: the received numbers of rows; None if none are unknown.
    """
    known = self.known[index]
    if len(known) != 1:
      shape = self._target(tuple(-1 if n is None else n for n in known))
      if counts is not None and None in known and 0 in known:
        # The elements do not tell the number of rows.
        shape = tf.stack([counts[self._unknown.index(index)], *known[1:]])
      flat = tf.reshape(flat, shape)
    flat.set_shape(known)
    return flat

  def _target(self, shape: tuple[int, ...]) -> tf.Tensor:
    if shape not in self._targets:
      self._targets[shape] = tf.constant(shape, tf.int32)
    return self._targets[shape]


def total(sizes: list[int] | tf.Tensor) -> Any:
  """Returns the sum of what `Shapes.sizes` returned."""
  return sum(sizes) if isinstance(sizes, list) else tf.reduce_sum(sizes)
