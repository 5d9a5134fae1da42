"""Divides tensors into chunks, so that transfers overlap with computation.

The gradients of a model's last layers can travel while those of its first ones
are computed, and a layer can start once its own parameters have arrived. Hence
what takes longer to transmit than a call's overhead is not sent as one message.
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
  """Yields chunks of items, in their order.

  Args:
    items: the items to divide; a single item is never split.
    tensor_of: returns the tensor of an item, which determines its size. A
      tensor of unknown size counts as 0 bytes.
    max_bytes: maximum size of a chunk; exceeded only by a single larger item.
  """
  return division.divide(
    items, lambda item: num_bytes(tensor_of(item)) or 0, max_bytes
  )


def num_bytes(tensor: Any) -> int | None:
  """Returns the size of a tensor; None if it is not known statically."""
  if not tf.is_tensor(tensor) or isinstance(tensor, tf.IndexedSlices):
    return None
  size = tensor.shape.num_elements()
  return None if size is None else int(size) * int(tensor.dtype.size)
