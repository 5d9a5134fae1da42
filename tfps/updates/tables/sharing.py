"""Parts of functions that similar shards share, as tracing takes seconds."""

from collections.abc import Hashable
from typing import Any
import weakref

import tensorflow as tf

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
