"""Shapes of tensors whose numbers of rows the receiver has to learn."""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

COUNT = tf.int64
REST = -1  # as a size, whatever the other sizes leave; see `tf.split`


class Shapes:
  """The static shapes of tensors, to be completed by the receiver.

  Graphs of many embeddings consist mostly of this, so it takes few operations.

  Args:
    tensors: the tensors; only their first dimension may be unknown.
    tells_length: whether the receiver knows how many elements there are in all.

  Attributes:
    known: the static shapes; None for an unknown number of rows.
    num_sent: how many numbers of rows have to be sent: all that are unknown,
      unless it is one and the length tells it.
  """

  def __init__(
    self, tensors: Sequence[tf.Tensor], *, tells_length: bool = False
  ) -> None:
    self.known = [tensor.shape.as_list() for tensor in tensors]
    self._unknown = [i for i, each in enumerate(self.known) if None in each]
    is_told = tells_length and len(self._unknown) == 1
    if is_told and 0 not in self.known[self._unknown[0]]:
      self.num_sent = 0
    else:  # elements that are none do not tell how many rows they are
      self.num_sent = len(self._unknown)
    self._targets: dict[tuple[int, ...], tf.Tensor] = {}

  def counts(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the numbers of rows to send: int64 of shape [num_sent]."""
    shapes = [tf.shape(tensors[i], out_type=COUNT) for i in self._unknown]
    first = np.cumsum([0, *(len(self.known[i]) for i in self._unknown)])[:-1]
    return tf.gather(tf.concat(shapes, axis=0), first)

  def sizes(
    self, indices: Sequence[int], counts: tf.Tensor | None
  ) -> list[int] | tf.Tensor:
    """Returns the numbers of elements of some of the tensors.

    Args:
      indices: of the tensors.
      counts: the received numbers of rows; None if none are sent.

    Returns:
      A list if none are sent, in which -1 is for what is left, else an int64
      tensor of shape [len(indices)].
    """
    factors = [
      math.prod(n for n in self.known[i] if n is not None) for i in indices
    ]
    is_unknown = [None in self.known[i] for i in indices]
    if counts is None or not any(is_unknown):
      return [
        REST if unknown else factor
        for unknown, factor in zip(is_unknown, factors, strict=True)
      ]
    place = {i: k for k, i in enumerate(self._unknown)}
    counted = tf.concat([counts, tf.constant([1], COUNT)], axis=0)
    rows = tf.gather(counted, [place.get(i, self.num_sent) for i in indices])
    return rows * tf.constant(factors, COUNT)

  def restore(
    self, index: int, flat: tf.Tensor, counts: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns a tensor of which only the elements have been received.

    Args:
      index: of the tensor.
      flat: its elements, of shape [size].
      counts: the received numbers of rows; None if none are sent.
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
  """Returns the sum of what `Shapes.sizes` returned, which has no `REST`."""
  return sum(sizes) if isinstance(sizes, list) else tf.reduce_sum(sizes)


def num_bytes(sizes: list[int] | tf.Tensor, dtype: tf.DType) -> Any:
  """Returns how many bytes tensors have, or `REST`.

  Args:
    sizes: what `Shapes.sizes` returned.
    dtype: that of the tensors.
  """
  if isinstance(sizes, list) and REST in sizes:
    return REST
  return total(sizes) * dtype.size
