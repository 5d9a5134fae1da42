"""Rounds of steps, of which each pulls once and pushes once."""

import collections
import dataclasses
from typing import Any

from tfps.wire import local_copies as local_copies_lib


@dataclasses.dataclass
class Round:
  """Consecutive steps that pull once and push once.

  Attributes:
    index: the round's number within the function.
    is_ending: whether its last step is being traced.
    is_applying: whether gathered gradients are being applied.
    gathered: gradients to apply at the end, for `updates.accumulation`.
    calls: the number of calls of each optimizer in this step.
    copies: the worker's copies of variables, by their keys.
    writes: the number of operations that wrote to a variable before the round,
      by `id` of its handle.
    shards: gradients that were sharded already, by `id`.
  """

  index: int
  is_ending: bool = False
  is_applying: bool = False
  gathered: dict[Any, Any] = dataclasses.field(default_factory=dict)
  calls: Any = dataclasses.field(default_factory=collections.Counter)
  copies: dict[Any, local_copies_lib.Copy] = dataclasses.field(
    default_factory=dict
  )
  writes: dict[int, int] = dataclasses.field(default_factory=dict)
  shards: dict[int, Any] = dataclasses.field(default_factory=dict)
