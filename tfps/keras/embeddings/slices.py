"""Variables of shards as entries of a Keras store, which are slices of them.

A store reads and writes an entry as a whole. So each has a slice of a variable
at most, under the variable's name, its shard and the slice's number, such as
`rows_2.0`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import functools
import re
from typing import Any

import numpy as np

from tfps.updates.tables import saved_shards
from tfps.variables import row_writes

_ENTRY = re.compile(r'(.+)_(\d+)\.(\d+)')


def save(
  store: Any, shards: Iterable[saved_shards.SavedShard], prefix: str = ''
) -> None:
  """Writes all variables of shards.

  Args:
    store: of Keras, or another mapping.
    shards: the shards.
    prefix: begins the names of all entries.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  for number, shard in enumerate(shards):
    for name, length in shard.lengths.items():
      row_bytes = shard.read(name, 0, 1).nbytes
      step = max(1, row_writes.SLICE_BYTES // row_bytes)
      for part, first in enumerate(range(0, length, step)):
        rows = shard.read(name, first, min(step, length - first))
        store[f'{prefix}{name}_{number}.{part}'] = rows


def of_variables(
  variables: Mapping[str, Any], values: Mapping[int, np.ndarray]
) -> saved_shards.SavedShard:
  """Returns a shard whose variables have other values than they have now.

  Args:
    variables: Keras' variables, by name.
    values: the values, by ids of variables.
  """
  arrays = {name: values[id(each)] for name, each in variables.items()}
  return saved_shards.SavedShard(
    {name: len(array) for name, array in arrays.items()},
    lambda name, first, number: arrays[name][first : first + number],
  )


def load(store: Any, prefix: str = '') -> list[saved_shards.SavedShard]:
  """Returns the shards that `save` has written, to be read in slices.

  Args:
    store: of Keras, or another mapping.
    prefix: as for `save`.
  """
  found: dict[int, dict[str, _Variable]] = {}
  keys = store.keys()  # it need not be iterable itself
  for key in keys:
    match = _ENTRY.fullmatch(key)
    if match and key.startswith(prefix):
      name, number = match[1].removeprefix(prefix), int(match[2])
      variable = found.setdefault(number, {}).setdefault(
        name, _Variable(store, f'{match[1]}_{number}')
      )
      variable.num_slices += 1
  return [_shard(found[number]) for number in sorted(found)]


def is_entry(key: str) -> bool:
  """Returns whether `save` has made the name of an entry."""
  return _ENTRY.fullmatch(key) is not None


def _shard(variables: dict[str, '_Variable']) -> saved_shards.SavedShard:
  lengths = {name: variable.length() for name, variable in variables.items()}
  return saved_shards.SavedShard(
    lengths,
    lambda name, first, number: variables[name].read(first, first + number),
  )


class _Variable:
  """Slices of a variable, of which it keeps the one that was read last.

  Args:
    store: that has them.
    key: their names begin with.

  Attributes:
    num_slices: how many there are.
  """

  def __init__(self, store: Any, key: str) -> None:
    self._store = store
    self._key = key
    self.num_slices = 0
    self._last: tuple[int, np.ndarray] | None = None

  def length(self) -> int:
    """Returns the number of rows of all slices."""
    last = self.num_slices - 1
    return last * self._step + len(self._slice(last))

  def read(self, first: int, end: int) -> np.ndarray:
    """Returns some rows; fewer than asked for at the end."""
    step = self._step
    parts = [
      self._slice(part)[max(0, first - part * step) : end - part * step]
      for part in range(first // step, min(-(-end // step), self.num_slices))
    ]
    return np.concatenate(parts)

  @functools.cached_property
  def _step(self) -> int:
    return len(self._slice(0))

  def _slice(self, part: int) -> np.ndarray:
    if self._last is None or self._last[0] != part:
      self._last = part, np.asarray(self._store[f'{self._key}.{part}'])
    return self._last[1]
