"""Shapes of which the receiver of tensors cannot know the number of rows."""

from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

COUNT = tf.int64


class Shapes:
  """The shapes of some tensors, as far as they are known beforehand.

  Args:
    tensors: of which nothing but the first dimension may be unknown.

  Attributes:
    known: what is known; None for a number of rows that is not.
    num_unknown: how many such numbers there are.
  """

  def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
    self.known = [tensor.shape.as_list() for tensor in tensors]
    self.num_unknown = sum(None in shape for shape in self.known)

  def counts(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The numbers of rows that are not known, to be sent along."""
    return tf.stack(
      [
        tf.shape(tensor, out_type=COUNT)[0]
        for tensor, shape in zip(tensors, self.known, strict=True)
        if None in shape
      ]
    )

  def complete(self, counts: tf.Tensor | None) -> list[list[Any]]:
    """All shapes in full.

    Args:
      counts: the numbers of rows that were sent along; None if none were.
    """
    unknown = iter(
      () if counts is None else tf.unstack(counts, self.num_unknown)
    )
    return [
      [next(unknown) if size is None else size for size in shape]
      for shape in self.known
    ]


def num_elements(shape: Sequence[Any]) -> Any:
  """The number of elements; a tensor if the number of rows is one."""
  first, rest = (*shape, 1)[0], shape[1:]
  return first * math.prod(rest)
