"""Saved variables of a table's shards, read in slices, and where they are.

What a shard has in memory is read in the same way, to be saved.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import open_shapes
from tfps._compat import side_executor
from tfps._compat import survivors
from tfps._compat import tensor_bundle
from tfps.updates.tables import admission as admission_lib
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import resources
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import weights

_Count = counts_lib.Count
_CELLS = admission_lib.CELLS


@dataclasses.dataclass(frozen=True)
class SavedShard:
  """Saved variables of a shard.

  Attributes:
    lengths: how many rows each has, by name as in `shard.Shard.values`, or by
      the name of a slot.
    read: returns consecutive rows of a variable, given its name, the first row
      and how many.
  """

  lengths: Mapping[str, int]
  read: Callable[[str, int, int], np.ndarray]

  @property
  def counts(self) -> np.ndarray:
    """The saved counts of keys and rows."""
    return self.read('counts', 0, len(_Count))

  def part(self, prefix: str) -> 'SavedShard':
    """Returns the shard of those variables whose names begin with a prefix."""
    lengths = {
      name.removeprefix(prefix): length
      for name, length in self.lengths.items()
      if name.startswith(prefix)
    }
    return SavedShard(
      lengths,
      lambda name, first, number: self.read(prefix + name, first, number),
    )


def in_files(
  reader: tensor_bundle.Reader, keys: Mapping[str, str]
) -> SavedShard:
  """Returns a shard that is in the files of a checkpoint.

  Args:
    reader: of the files.
    keys: of its variables in the files, by the names that they are to have.
  """
  lengths = {name: reader.shapes[key][0] for name, key in keys.items()}
  return SavedShard(
    lengths,
    lambda name, first, number: reader.rows(keys[name], first, number),
  )


def view(shard: shard_lib.Shard) -> SavedShard:
  """Returns a shard as if it had been saved, to be read from its device."""
  lengths = _lengths(shard)
  prefix = admission_lib.CANDIDATES
  if f'{prefix}counts' in shard.values:
    of_candidates = _lengths(shard.part(prefix))
    lengths |= {prefix + name: n for name, n in of_candidates.items()}
  return SavedShard(lengths, _reader(shard.values))


def view_slots(shard: shard_lib.Shard, slots: Mapping[str, Any]) -> SavedShard:
  """Returns what `restore_slots` needs of slots of a shard's rows, as `view`.

  Args:
    shard: the shard.
    slots: the slots, by the names that they are to have.
  """
  lengths = {
    name: length
    for name, length in _lengths(shard).items()
    if name in ('counts', 'keys', 'addresses')
  }
  used = lengths['keys']
  for name, slot in slots.items():  # rows without updates may have none
    lengths[name] = min(used, int(resources.num_rows(slot)))
  return SavedShard(lengths, _reader({**shard.values, **slots}))


def _lengths(shard: shard_lib.Shard) -> dict[str, int]:
  used = int(shard.counts.numpy()[_Count.USED])
  lengths = {name: used for name in weights.BY_ROW if name in shard.values}
  if _CELLS in shard.values:
    lengths[_CELLS] = int(open_shapes.num_rows(shard.values[_CELLS]))
  return {**lengths, 'counts': len(_Count)}


def _reader(
  variables: Mapping[str, Any],
) -> Callable[[str, int, int], np.ndarray]:
  def read(name: str, first: int, number: int) -> np.ndarray:
    variable = variables[name]

    def gather() -> np.ndarray:
      with side_executor.run_aside(variable.device):
        numbers = tf.range(first, first + number, dtype=tf.int64)
        rows: np.ndarray = resources.gather(variable, numbers).numpy()
      return rows

    found: np.ndarray = survivors.surviving(variable, gather)
    return found

  return read
