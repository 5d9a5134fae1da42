"""Checkpoints of TensorFlow, restored to tables of other shards or policies.

A checkpoint has the variables of each shard by name, and optimizers' slots in
lists by number. If a table has the same, TensorFlow restores all. If not, keys
are given to the shards that they belong to, slots follow them, and those of
other variables are found by their order.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import re
from typing import Any
from typing import NamedTuple

import keras

from tfps._compat import checkpoint_visits
from tfps._compat import keras_variables
from tfps._compat import saved_models
from tfps._compat import tensor_bundle
from tfps.keras import table_slots
from tfps.updates.tables import resharding
from tfps.updates.tables import saved_shards

Visit = checkpoint_visits.Visit

_ROWS = 'rows'
_VARIABLE = re.compile(r'(.+)_(\d+)')
_UPDATED = '_trainable_variables'  # of an optimizer of Keras
_ALL = '_variables'
# Slots are found by keys, which are restored before.
_FIRST, _LATER = 0, 1


class Restores:
  """Restores of a table that has no variables yet.

  TensorFlow would not know by name which of them are to be restored.
  """

  def __init__(self) -> None:
    self._visits: list[Visit] = []

  def wait(self, visit: Visit) -> None:
    """Waits with the table of a visit."""
    self._visits.append(visit)

  def resume(self) -> None:
    """Restores the table, which has got its variables."""
    visits, self._visits = self._visits, []
    for visit in visits:
      visit.resume()


def take_part() -> None:
  """Takes part in all restores of checkpoints, and in saving models."""
  checkpoint_visits.take_part(_visit)
  saved_models.sign_what_is_taken()


def saved_names(visit: Visit) -> list[set[str]]:
  """Returns the names of each shard's variables in the checkpoint.

  Args:
    visit: of the table.
  """
  return [set(each) for each in visit.once(_Graph).tables.get(visit.node, ())]


def restore_table(
  visit: Visit,
  shards: Sequence[Any],
  variables: Sequence[Mapping[str, Any]],
) -> None:
  """Restores a table with other shards or variables than the checkpoint has.

  Args:
    visit: of the table.
    shards: its shards.
    variables: Keras' variables of each of them, by name.
  """
  graph = visit.once(_Graph)
  saved = graph.tables[visit.node]
  last = len(shards) - 1
  visit.restore_otherwise(
    [
      (node, variables[min(number, last)][name])
      for number, nodes in enumerate(saved)
      for name, node in nodes.items()
      if name in variables[0]
    ],
    [
      part
      for number, own in enumerate(variables)
      for name, part in own.items()
      if number >= len(saved) or name not in saved[number]
    ],
    _FIRST,
    lambda: resharding.restore(
      shards, [graph.saved_shard(nodes) for nodes in saved]
    ),
  )


def _visit(visit: Visit) -> bool:
  restore = getattr(visit.found, 'restore_otherwise', None)
  if restore is not None:
    restored: bool = restore(visit)
    return restored
  if isinstance(visit.found, list):
    return _restore_list(visit, visit.found)
  return False


def _restore_list(visit: Visit, parts: Sequence[Any]) -> bool:
  """Restores a list of an optimizer, if it is for other numbers of shards."""
  present = [part for part in parts if part is not None]
  if not all(isinstance(part, keras.Variable) for part in present):
    return False  # in a SavedModel that is loaded
  graph = visit.once(_Graph)
  saved = graph.lists.get(visit.node)
  if saved is None:
    return False
  owned = [(table_slots.table_of(part), part) for part in present]
  own = _pattern(owned, lambda owner: set(owner[0][owner[1]].values))
  if graph.pattern(saved) == own:
    return False
  if not saved.are_slots:
    return True  # they are parts of other objects, too
  others = [
    [part for owner, part in pairs if owner is None]
    for pairs in (saved.parts, owned)
  ]
  for node, part in zip(*others, strict=False):
    visit.restore(node, part)
  for nodes, slots in zip(
    _by_table(saved.parts), _by_table(owned), strict=False
  ):
    _restore_slots(visit, graph, nodes, slots)
  return True


def _restore_slots(
  visit: Visit, graph: '_Graph', nodes: '_OfTable', slots: '_OfTable'
) -> None:
  shards = slots.table
  last = len(slots.parts) - 1
  saved = [
    graph.saved_slot(shard, node)
    for shard, node in zip(graph.tables[nodes.table], nodes.parts, strict=True)
  ]
  values = [keras_variables.value_of(slot) for slot in slots.parts]
  visit.restore_otherwise(
    [
      (node, slots.parts[min(number, last)])
      for number, node in enumerate(nodes.parts)
    ],
    slots.parts[len(nodes.parts) :],
    _LATER,
    lambda: resharding.restore_slots(values, shards, saved),
  )


class _OfTable(NamedTuple):
  """Slots, one for each shard of a table.

  Attributes:
    table: its shards, or its number in the checkpoint.
    parts: the slots, or their numbers in the checkpoint.
  """

  table: Any
  parts: list[Any]


# The table and the shard that a slot or rows are of, or None, and itself. In a
# checkpoint, objects are numbers.
_Owned = tuple[tuple[Any, int] | None, Any]


def _by_table(parts: Sequence[_Owned]) -> list[_OfTable]:
  found: dict[Any, _OfTable] = {}
  for owner, part in parts:
    if owner is not None:
      key = _key(owner)
      found.setdefault(key, _OfTable(owner[0], [])).parts.append(part)
  return list(found.values())


def _pattern(
  parts: Sequence[_Owned], names_of: Callable[[Any], set[str]]
) -> list[tuple[int, set[str]] | None]:
  """Returns which table each part is of, by the order in which they occur.

  Args:
    parts: parts of a list.
    names_of: returns the names of the variables of a table's shard.
  """
  owners = [owner for owner, _ in parts]
  tables = list(dict.fromkeys(_key(each) for each in owners if each))
  return [
    (tables.index(_key(owner)), names_of(owner)) if owner else None
    for owner in owners
  ]


def _key(owner: tuple[Any, int]) -> int:
  table = owner[0]
  return table if isinstance(table, int) else id(table)


class _List(NamedTuple):
  """A list of an optimizer in a checkpoint.

  Attributes:
    are_slots: whether it has the slots of one kind.
    parts: its parts.
  """

  are_slots: bool
  parts: list[_Owned]


class _Graph:
  """Tables of a checkpoint, and the optimizers that update their rows.

  Args:
    visit: of any object.

  Attributes:
    tables: the variables of each shard of a table, by name.
    lists: of optimizers of such tables.
  """

  def __init__(self, visit: Visit) -> None:
    self._nodes = visit.nodes()
    self._visit = visit
    self.tables = {
      node: _shards(parts)
      for node, parts in enumerate(self._nodes)
      if f'{_ROWS}_0' in parts and 'keys_0' in parts
    }
    self._owners = {
      shard[_ROWS]: (table, number)
      for table, shards in self.tables.items()
      for number, shard in enumerate(shards)
    }
    self.lists: dict[int, _List] = {}
    for node, parts in enumerate(self._nodes):
      if node not in self.tables and _UPDATED in parts:
        self._add_lists(parts)

  def pattern(self, parts: _List) -> list[tuple[int, set[str]] | None]:
    """Returns which table each part of a list is of, as `_pattern` does."""
    return _pattern(
      parts.parts, lambda owner: set(self.tables[owner[0]][owner[1]])
    )

  def saved_shard(self, nodes: Mapping[str, int]) -> saved_shards.SavedShard:
    """Returns a shard, given its variables by name."""
    keys = {name: self._visit.key(node) for name, node in nodes.items()}
    return saved_shards.in_files(self._reader, keys)

  def saved_slot(
    self, nodes: Mapping[str, int], slot: int
  ) -> saved_shards.SavedShard:
    """Returns what a slot is restored from, given its shard's variables."""
    return self.saved_shard({**nodes, 'slot': slot})

  @functools.cached_property
  def _reader(self) -> tensor_bundle.Reader:
    return tensor_bundle.Reader(self._visit.path)

  def _add_lists(self, parts: Mapping[str, int]) -> None:
    updated = self._items(parts[_UPDATED])
    if not any(node in self._owners for node in updated.values()):
      return
    of_slots: dict[int, Any] = {}
    for name, node in parts.items():
      items = self._items(node)
      if name in (_UPDATED, _ALL) or not items.keys() <= updated.keys():
        continue
      owned = [
        (self._owners.get(updated[place]), item)
        for place, item in items.items()
      ]
      of_slots |= {item: owner for owner, item in owned}
      self.lists[node] = _List(True, owned)
    for name in {_UPDATED, _ALL} & parts.keys():
      items = self._items(parts[name])
      owners = {**of_slots, **self._owners}
      self.lists[parts[name]] = _List(
        False, [(owners.get(item), item) for item in items.values()]
      )

  def _items(self, node: int) -> dict[int, int]:
    """Returns the parts of a list by their places."""
    parts = self._nodes[node].items()
    return {int(name): part for name, part in parts if name.isdigit()}


def _shards(parts: Mapping[str, int]) -> list[dict[str, int]]:
  found: dict[int, dict[str, int]] = {}
  for name, node in parts.items():
    if match := _VARIABLE.fullmatch(name):
      found.setdefault(int(match[2]), {})[match[1]] = node
  return [found[number] for number in sorted(found)]
