"""Parts of functions that similar shards share, as tracing takes seconds."""

from collections.abc import Callable
from collections.abc import Hashable
from typing import Any
from typing import TypeVar
import weakref

import tensorflow as tf

_Made = TypeVar('_Made')

# By what they depend on, those that some shard uses.
Shared = weakref.WeakValueDictionary[Hashable, Any]

_BY_STRATEGY: weakref.WeakKeyDictionary[Any, Shared] = (
  weakref.WeakKeyDictionary()
)


def in_use() -> Shared:
  """Returns what shards of the current strategy use.

  What is of another one may be unknown to the servers that it is connected to.
  """
  return _BY_STRATEGY.setdefault(tf.distribute.get_strategy(), Shared())


def get_or_make(
  shared: Shared, similar: Hashable, make: Callable[[], _Made]
) -> _Made:
  """Returns what similar users share, which the caller has to keep.

  Args:
    shared: as `in_use` returns it.
    similar: all that it depends on.
    make: makes it of nothing else.
  """
  found: _Made | None = shared.get(similar)
  if found is None:
    found = shared[similar] = make()
  return found
