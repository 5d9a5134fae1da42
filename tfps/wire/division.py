"""Divides a sequence into chunks of limited size, without TensorFlow."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar('_Item')

# A call takes some tenths of a millisecond, as does this size at 10 Gbit/s.
MAX_BYTES = 1 << 20


def divide(
  items: Sequence[_Item],
  bytes_of: Callable[[_Item], float],
  max_bytes: int = MAX_BYTES,
) -> Iterator[list[_Item]]:
  """Yields chunks of items, in their order.

  Args:
    items: the items to divide; a single item is never split.
    bytes_of: returns the size of an item.
    max_bytes: maximum size of a chunk; exceeded only by a single larger item.
  """
  chunk: list[_Item] = []
  total = 0.0
  for item in items:
    more = bytes_of(item)
    if chunk and total + more > max_bytes:
      yield chunk
      chunk, total = [], 0.0
    chunk.append(item)
    total += more
  if chunk:
    yield chunk
