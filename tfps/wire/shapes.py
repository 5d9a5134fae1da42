"""Shapes of tensors whose numbers of rows are sent along with them."""

from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

COUNT = tf.int64


class Shapes:
  """The static shapes of tensors, to be completed by the receiver.

  Args:
    tensors: the tensors; only their first dimension may be unknown.

  Attributes:
    known: the static shapes; None for an unknown number of rows.
    num_unknown: how many numbers of rows are unknown.
  """

  def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
    self.known = [tensor.shape.as_list() for tensor in tensors]
    self.num_unknown = sum(None in shape for shape in self.known)

  def counts(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the unknown numbers of rows: int64 of shape [num_unknown]."""
    return tf.stack(
      [
        tf.shape(tensor, out_type=COUNT)[0]
        for tensor, shape in zip(tensors, self.known, strict=True)
        if None in shape
      ]
    )

  def complete(self, counts: tf.Tensor | None) -> list[list[Any]]:
    """Returns all shapes in full.

    Args:
      counts: the received numbers of rows; None if none are unknown.
    """
    unknown = iter(
      () if counts is None else tf.unstack(counts, self.num_unknown)
    )
    return [
      [next(unknown) if size is None else size for size in shape]
      for shape in self.known
    ]


def num_elements(shape: Sequence[Any]) -> Any:
  """Returns the number of elements; a tensor if the number of rows is."""
  first, rest = (*shape, 1)[0], shape[1:]
  return first * math.prod(rest)
