"""Shapes of tensors whose numbers of rows the receiver has to learn."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import row_counts

COUNT = tf.int64
REST = -1  # as a size, whatever the other sizes leave; see `tf.split`


class Shapes:
  """The static shapes of tensors, to be completed by the receiver.

  Graphs of many embeddings consist mostly of this, so it takes few operations.

  Args:
    tensors: the tensors; only their first dimension may be unknown.
    tells_length: whether the receiver knows how many elements there are in all.
    told: numbers of rows that the receiver knows, int64 scalars there, by index
      of the tensor.

  Attributes:
    known: the static shapes; None for an unknown number of rows.
    num_sent: how many numbers of rows have to be sent: all that are unknown,
      unless it is one and the length tells it.
  """

  def __init__(
    self,
    tensors: Sequence[tf.Tensor],
    *,
    tells_length: bool = False,
    told: Mapping[int, tf.Tensor] | None = None,
  ) -> None:
    self.known = [tensor.shape.as_list() for tensor in tensors]
    unknown = [i for i, each in enumerate(self.known) if None in each]
    self._told = {i: n for i, n in (told or {}).items() if i in unknown}
    self._sent = [i for i in unknown if i not in self._told]
    # Elements that are none do not tell how many rows they are.
    if tells_length and len(unknown) == 1 and 0 not in self.known[unknown[0]]:
      self._told, self._sent = {}, []
    # Numbers that are at hand precede those that have to be found out.
    self._sent.sort(key=lambda i: row_counts.of(tensors[i]) is None)
    self.num_sent = len(self._sent)
    self._place = {i: k for k, i in enumerate([*self._sent, *self._told])}
    self._targets: dict[tuple[int, ...], tf.Tensor] = {}

  def counts(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the numbers of rows to send: int64 of shape [num_sent]."""
    at_hand = [row_counts.of(tensors[i]) for i in self._sent]
    parts = []
    if found := [count for count in at_hand if count is not None]:
      parts.append(tf.stack(found))
    if others := self._sent[len(found) :]:
      shapes = [tf.shape(tensors[i], out_type=COUNT) for i in others]
      first = np.cumsum([0, *(len(self.known[i]) for i in others)])[:-1]
      parts.append(tf.gather(tf.concat(shapes, axis=0), first))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

  def received(self, sent: tf.Tensor | None) -> tf.Tensor | None:
    """Returns the numbers of rows at the receiver, as other methods take them.

    Args:
      sent: those that were sent, from `counts`; None if none were.

    Returns:
      An int64 vector; None if no number has to be known.
    """
    parts = [] if sent is None else [sent]
    if self._told:
      parts.append(tf.stack(list(self._told.values())))
    if len(parts) < 2:
      return parts[0] if parts else None
    return tf.concat(parts, axis=0)

  def rows(
    self, indices: Sequence[int], counts: tf.Tensor | None
  ) -> list[int] | tf.Tensor:
    """Returns the numbers of rows of some of the tensors; 1 for a scalar.

    Args:
      indices: of the tensors.
      counts: from `received`.

    Returns:
      A list if `counts` is None or they are all static, in which -1 is for what
      is left, else an int64 tensor of shape [len(indices)].
    """
    static = [(self.known[i] or [1])[0] for i in indices]
    if counts is None or None not in static:
      return [REST if number is None else number for number in static]
    numbers = [number for number in static if number is not None]
    if numbers:
      counts = tf.concat([counts, tf.constant(numbers, COUNT)], axis=0)
    later = iter(range(len(self._place), len(self._place) + len(numbers)))
    places = [
      self._place[i] if number is None else next(later)
      for i, number in zip(indices, static, strict=True)
    ]
    if places == list(range(len(self._place) + len(numbers))):
      return counts
    return tf.gather(counts, places)

  def sizes(
    self, blocks: Sequence[Sequence[int]], counts: tf.Tensor | None
  ) -> list[int] | tf.Tensor:
    """Returns the numbers of elements of blocks of tensors.

    Args:
      blocks: the indices of each block's tensors, whose rows have the same
        shape.
      counts: from `received`.

    Returns:
      A list if `counts` is None or they are all static, in which -1 is for what
      is left, else an int64 tensor of shape [len(blocks)].
    """
    factors = [math.prod(self.known[block[0]][1:]) for block in blocks]
    rows = self.rows([i for block in blocks for i in block], counts)
    lengths = [len(block) for block in blocks]
    if isinstance(rows, list):
      each = np.split(rows, np.cumsum(lengths)[:-1])
      return [
        REST if REST in numbers else int(sum(numbers)) * factor
        for numbers, factor in zip(each, factors, strict=True)
      ]
    if max(lengths) > 1:
      rows = tf.math.segment_sum(rows, np.repeat(range(len(blocks)), lengths))
    return rows * tf.constant(factors, COUNT)

  def restore(
    self, block: Sequence[int], flat: tf.Tensor, counts: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns tensors of which only the elements were received, as one.

    Args:
      block: their indices; their rows have the same shape.
      flat: their elements, of shape [size].
      counts: from `received`.
    """
    known = self.known[block[0]]
    if len(block) > 1:
      known = [None, *known[1:]]
    if len(known) != 1:
      shape = self._target(tuple(-1 if n is None else n for n in known))
      if counts is not None and None in known and 0 in known:
        # The elements do not tell the number of rows.
        shape = tf.stack([counts[self._place[block[0]]], *known[1:]])
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
