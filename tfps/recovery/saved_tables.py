"""Tables in snapshots, which may have other shards or policies there.

The names of variables tell tables and shards: a table's are made one after the
other, shard by shard, and first the rows.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import re
from typing import Any

from tfps import errors
from tfps._compat import handles
from tfps.recovery import inventory as inventory_lib
from tfps.recovery import snapshots
from tfps.updates.tables import resharding
from tfps.updates.tables import saved_shards
from tfps.updates.tables import shard as shard_lib

# A table's variable, and its shard; other variables of the name are numbered.
_VARIABLE = re.compile(
  r'(?:.*/)?((?:candidate_)?(?:rows|keys|counts|addresses|free|scores)'
  r'|admission_cells)_(\d+)(?:[#_]\d+)?'
)
_ROWS = 'rows'

# The variables of each shard, by name.
_Keys = list[dict[str, str]]


def find(keys: Iterable[str]) -> list[_Keys]:
  """Returns tables among variables.

  Args:
    keys: of the variables, in the order in which they were made.

  Returns:
    For each table and each of its shards the keys of its variables, by name.
  """
  tables: list[_Keys] = []
  for key in keys:
    match = _VARIABLE.fullmatch(key)
    if match is None:
      continue
    name, number = match[1], int(match[2])
    if name == _ROWS and number == 0:
      tables.append([])
    if not tables:
      continue
    if name == _ROWS and number == len(tables[-1]):
      tables[-1].append({})
    if number == len(tables[-1]) - 1:
      tables[-1][number].setdefault(name, key)
  return tables


def are_alike(one: Iterable[str], other: Iterable[str]) -> bool:
  """Returns whether tables have as many shards, of the same variables."""
  return [_names(t) for t in find(one)] == [_names(t) for t in find(other)]


def _names(table: _Keys) -> list[set[str]]:
  return [set(shard) for shard in table]


class SavedTables:
  """Tables of a snapshot, for those of this program.

  Args:
    snapshot: the snapshot.
    inventory: variables of this program.
  """

  def __init__(
    self, snapshot: snapshots.Snapshot, inventory: inventory_lib.Inventory
  ) -> None:
    self._snapshot = snapshot
    self._inventory = inventory

  def restore(self, shards: Sequence[shard_lib.Shard]) -> None:
    """Restores a table that has other shards or policies there.

    Args:
      shards: its shards.

    Raises:
      errors.CheckpointError: it does not fit what was saved.
      tf.errors.OpError: a ps is lost.
    """
    found = self._find(shards)
    if not found:
      return
    try:
      resharding.restore(shards, [self._shard(keys) for keys in found])
    except ValueError as error:
      raise errors.CheckpointError(
        f'{self._snapshot.path} cannot be restored: {error}'
      ) from error

  def restore_slots(
    self, slots: Sequence[Any], shards: Sequence[shard_lib.Shard]
  ) -> None:
    """Restores slots of such a table, if they were saved.

    Args:
      slots: for each shard, the slot of its rows.
      shards: the table's shards, which have been restored.

    Raises:
      errors.CheckpointError: they do not fit what was saved.
      tf.errors.OpError: a ps is lost.
    """
    head, rows, tail = self._key(slots[0]).rpartition(f'{_ROWS}_0_')
    saved = []
    for number, keys in enumerate(self._find(shards)):
      slot = head + rows.replace('0', str(number)) + tail
      if slot not in self._snapshot.contents:
        return
      saved.append(self._shard({**keys, 'slot': slot}))
    if saved:
      resharding.restore_slots(slots, shards, saved)

  def _find(self, shards: Sequence[shard_lib.Shard]) -> _Keys:
    """Returns where the table's shards are, unless they are like these."""
    key = self._key(shards[0].rows)
    own = find(entry.key for entry in self._inventory.entries())
    number = [table[0][_ROWS] for table in own].index(key)
    saved = find(self._snapshot.contents)[number : number + 1]
    if not saved or _names(saved[0]) == _names(own[number]):
      return []
    return saved[0]

  def _key(self, variable: Any) -> str:
    inner = handles.inner(variable)
    return next(
      entry.key
      for entry in self._inventory.entries()
      if handles.inner(entry.variable) is inner
    )

  def _shard(self, keys: dict[str, str]) -> saved_shards.SavedShard:
    return saved_shards.in_files(self._snapshot.reader, keys)
