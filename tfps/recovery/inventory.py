"""Inventory of a strategy's variables on ps, under stable keys."""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import threading
from typing import Any

import tensorflow as tf

from tfps._compat import eager_writes
from tfps._compat import survivors
from tfps.variables import placement_ledger
from tfps.variables import sharded

_NAMELESS = 'Variable'


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
  """Variable or shard of a variable, on one ps.

  Attributes:
    variable: a `tf.Variable`.
    key: the name of the whole variable.
    slice_spec: its part of the whole variable in the format of TensorFlow's
      `SaveV2`; empty for all of it.
  """

  variable: Any
  key: str
  slice_spec: str = ''


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
  """Variable of the inventory, whole or sharded.

  Attributes:
    key: its name, followed by a number if earlier variables have the same.
    variable: a `tf.Variable` or a `ShardedVariable`.
  """

  key: str
  variable: Any

  @property
  def shape(self) -> list[int]:
    """The shape of the variable."""
    return list(self.variable.shape.as_list())

  @property
  def dtype(self) -> tf.DType:
    """The type of the variable."""
    dtype: tf.DType = self.variable.dtype
    return dtype

  def pieces(self) -> Iterator[Piece]:
    """Yields the variable itself, or its shards."""
    if not isinstance(self.variable, sharded.ShardedVariable):
      yield Piece(self.variable, self.key)
      return
    first = 0
    for shard in self.variable.variables:
      yield Piece(shard, self.key, _slice_spec(self.shape, first, shard.shape))
      first += shard.shape[0]


class Inventory:
  """Variables of a strategy in the order of their creation.

  A restarted program creates its variables in the same order and so finds them
  under the same keys.

  Attributes:
    unsaved: further variables that get new memory after a loss, and whose
      values are not saved: whoever made them sets them again.
    writes: writes to the variables outside of functions.
  """

  def __init__(self) -> None:
    self.unsaved: list[Any] = []
    self.writes = eager_writes.EagerWrites()
    self._lock = threading.Lock()
    self._entries: list[Entry] = []
    self._names: collections.Counter[str] = collections.Counter()

  def add(self, variable: Any, surviving: survivors.Surviving) -> Entry | None:
    """Adds a variable, unless it is not on a ps.

    Args:
      variable: a `tf.Variable` or a `ShardedVariable`.
      surviving: wrapper that repeats its reads and assignments after a loss.

    Returns:
      The entry; None if the variable is not on a ps.

    Raises:
      ValueError: it is sharded and holds strings.
    """
    if not _is_on_ps(variable):
      return None
    name = _name(variable)
    _check(name, variable)
    with self._lock:
      count = self._names[name]
      self._names[name] += 1
      entry = Entry(f'{name}#{count}' if count else name, variable)
      self._entries.append(entry)
    for piece in entry.pieces():
      survivors.make_survive(piece.variable, surviving, wrote=self.writes.note)
    return entry

  def entries(self) -> list[Entry]:
    """Returns all variables."""
    with self._lock:
      return list(self._entries)

  def on(self, ps: set[int]) -> list[Any]:
    """Returns variables and shards on ps, unsaved ones too.

    Args:
      ps: indices of the ps.
    """
    saved = [
      piece.variable for entry in self.entries() for piece in entry.pieces()
    ]
    return [
      variable
      for variable in (*saved, *self.unsaved)
      if placement_ledger.ps_index(variable.device) in ps
    ]

  def emptied(self) -> set[int]:
    """Returns the ps on which a variable or shard has no value.

    TensorFlow reports the failure of a remote operation late or not at all.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return {
      ps
      for entry in self.entries()
      for piece in entry.pieces()
      if not piece.variable.is_initialized()
      and (ps := placement_ledger.ps_index(piece.variable.device)) is not None
    }

  def __len__(self) -> int:
    return len(self._entries)


def format_ps(ps: Iterable[int]) -> str:
  """Returns the names of ps, given by index, for a message."""
  return ', '.join(f'ps:{index}' for index in sorted(ps)) or 'A ps'


def _is_on_ps(variable: Any) -> bool:
  """Returns whether a variable, or its first shard, is on a ps."""
  if isinstance(variable, sharded.ShardedVariable):
    return _is_on_ps(variable.variables[0])
  return placement_ledger.ps_index(variable.device) is not None


def _name(variable: Any) -> str:
  """Returns the variable's name without its shard's suffix, or a default."""
  if isinstance(variable, sharded.ShardedVariable):
    name = variable.variables[0].name.rpartition('/part_')[0]
  else:
    name = variable.name.partition(':')[0]
  return name or _NAMELESS


def _check(name: str, variable: Any) -> None:
  is_sharded = isinstance(variable, sharded.ShardedVariable)
  if is_sharded and variable.dtype == tf.string:
    raise ValueError(
      f'{name} holds strings in {len(variable.variables)} shards, which '
      'TensorFlow cannot save as parts of one tensor. Create it with a '
      'partitioner that does not shard it.'
    )


def _slice_spec(whole: list[int], first: int, shape: tf.TensorShape) -> str:
  sizes = ' '.join(map(str, whole))
  rows = f'{first},{shape[0]}'
  return f'{sizes} {":".join([rows, *("-" for _ in whole[1:])])}'
