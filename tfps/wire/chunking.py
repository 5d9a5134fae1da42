"""Divides what could cross as one, so that parts of it can be on their way.

While the gradients of a model's last layers travel, those of its first ones are
still being computed; and a layer can begin once its own parameters are there.
What takes the network longer than a call does is therefore not sent as one.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps.wire import division

_Item = TypeVar('_Item')

MAX_BYTES = division.MAX_BYTES


def divide(
  items: Sequence[_Item],
  tensor_of: Callable[[_Item], Any],
  max_bytes: int = MAX_BYTES,
) -> Iterator[list[_Item]]:
  """Chunks of items, in their order.

  Args:
    items: to be divided; none is cut itself.
    tensor_of: gives the tensor of an item, by whose size it counts. What is not
      of a known size counts as nothing.
    max_bytes: of a chunk, unless a single item has more.
  """
  return division.divide(
    items, lambda item: num_bytes(tensor_of(item)) or 0, max_bytes
  )


def num_bytes(tensor: Any) -> int | None:
  """Of a tensor; None if its size is not known beforehand."""
  if not tf.is_tensor(tensor) or isinstance(tensor, tf.IndexedSlices):
    return None
  size = tensor.shape.num_elements()
  return None if size is None else int(size) * int(tensor.dtype.size)
