"""Saved values of a table, given to a table with any number of shards.

Which shard a key belongs to depends on their number. So each saved key is given
a row in the shard that it belongs to now, and the row what was saved for the
key. Values are read and sent in slices: this process never holds a table. To
give the same values twice, or by two processes at once, changes nothing.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import open_shapes
from tfps.updates import apply
from tfps.updates import rows as rows_lib
from tfps.updates.tables import addresses as addresses_lib
from tfps.updates.tables import admission as admission_lib
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import eviction as eviction_lib
from tfps.updates.tables import index as index_lib
from tfps.updates.tables import locked
from tfps.updates.tables import resources
from tfps.updates.tables import saved_shards
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import weights
from tfps.variables import row_writes

_Count = counts_lib.Count
_Saved = saved_shards.SavedShard
_FIRST = counts_lib.NUM_INITIAL
# What matters only in sum over all shards.
_SUMMED = (_Count.EVICTED, _Count.LATE, _Count.REFUSED)
_CELLS = admission_lib.CELLS
# Resources of a shard that are made anew, with any prefix.
_NOT_NEEDED = ('addresses', 'free', 'index', 'digest')


def restore(shards: Sequence[shard_lib.Shard], saved: Sequence[_Saved]) -> None:
  """Gives a table the keys and rows that were saved, and no others.

  Scores are kept if those of the table's eviction have the same unit.

  Args:
    shards: all shards of the table.
    saved: all shards of the table that was saved.

  Raises:
    ValueError: the saved table has rows of another shape, or lacks what the
      policies of the table need, or its filters have another length.
    tf.errors.OpError: a ps is lost.
  """
  _check(shards[0], saved[0])
  _check_cells(shards[0], saved)
  _restore_rows(shards, saved)
  prefix = admission_lib.CANDIDATES
  if f'{prefix}counts' in shards[0].values:
    _restore_rows(
      [shard.part(prefix) for shard in shards],
      [each.part(prefix) for each in saved],
    )
  if _CELLS in shards[0].values:
    _restore_cells(shards, saved)


def restore_slots(
  slots: Sequence[Any],
  shards: Sequence[shard_lib.Shard],
  saved: Sequence[_Saved],
  name: str = 'slot',
  *,
  needs_keys: bool = True,
) -> None:
  """Gives slots of an optimizer the values that were saved for keys.

  Args:
    slots: for each of the table's shards, the slot of its rows.
    shards: the shards, whose keys were restored.
    saved: all shards of the table that was saved, with `counts`, `keys`, the
      slot, and `addresses` if it has these.
    name: under which the slot was saved.
    needs_keys: whether the table must have any of the saved keys.

  Raises:
    ValueError: it has none.
    tf.errors.OpError: a ps is lost.
  """
  first = saved[0].read(name, 0, _FIRST)
  for slot in slots:
    slot.assign(first)  # which leaves the other rows to `growing.fit`
  puts = [
    locked.function(shard, _put_slot, _types([None], [slot]), slot=slot)
    for slot, shard in zip(slots, shards, strict=True)
  ]
  num_keys = num_found = 0
  for each in saved:
    for keys, values in _slices(each, [name], with_old_slots=False):
      num_keys += len(keys)
      num_found += _divide(keys, values, puts)
  if needs_keys and num_keys and not num_found:
    raise ValueError(
      f'{slots[0].name}: none of the {num_keys} keys that it was saved for is '
      'in its table. Restore the table, too.'
    )


def _check(shard: shard_lib.Shard, saved: _Saved) -> None:
  missing = {
    name
    for name in shard.values
    if name not in saved.lengths and not name.endswith(_NOT_NEEDED)
  }
  if missing:
    raise ValueError(
      f'{shard.rows.name}: the saved table has no '
      f'{", ".join(sorted(missing))}, which this one needs. Make it with the '
      'admission and the eviction that the saved one had.'
    )
  row, own = saved.read('rows', 0, 1).shape[1:], tuple(shard.rows.shape[1:])
  if row != own:
    raise ValueError(
      f'{shard.rows.name}: rows of the saved table are {row}, and those of '
      f'this one are {own}. Make it with the same width.'
    )


def _check_cells(shard: shard_lib.Shard, saved: Sequence[_Saved]) -> None:
  """Refuses filters in which a key would be looked up in other places."""
  if _CELLS not in shard.values:
    return
  filters = int(saved[0].counts[_Count.FILTERS])
  length = saved[0].lengths[_CELLS] // max(filters, 1)
  wanted = shard.admission.filter_length(filters or len(saved))
  if length != wanted:
    raise ValueError(
      f'{shard.rows.name}: {shard.admission}: {admission_lib.OTHER_FILTERS} '
      f'{length} {wanted}.'
    )


def _restore_rows(
  shards: Sequence[shard_lib.Shard], saved: Sequence[_Saved]
) -> None:
  """Restores keys with their rows and scores; clears all else."""
  counts = [each.counts for each in saved]
  whole = _counts_of_all(counts)
  initial = saved[0].read('rows', 0, _FIRST)
  names = _restored_names(shards[0])
  for number, shard in enumerate(shards):
    # The first shard has the sums.
    dropped = dict.fromkeys(_SUMMED, 0) if number else {}
    own = {**whole, **dropped, _Count.NUM_SHARDS: shard.num_shards}
    clear = locked.function(shard, _clear, _types([len(_Count)], [shard.rows]))
    clear([own.get(count, 0) for count in _Count], initial)
  puts = [
    locked.function(shard, _put_rows, _types([None], _restored(shard)))
    for shard in shards
  ]
  unit = 0
  if 'scores' in names:
    (unit,) = saved[0].read('scores', eviction_lib.UNIT_ROW, 1)
  for each, own_counts in zip(saved, counts, strict=True):
    behind = whole[_Count.LOOKUPS] - int(own_counts[_Count.LOOKUPS])
    for keys, (rows, *scores) in _slices(each, names):
      # Of scores that are numbers of look-ups, the age is kept.
      moved = [score + behind for score in scores]
      adopted = [_adopted(shards[0], unit, score, whole) for score in moved]
      _divide(keys, [rows, *adopted], puts)


def _adopted(
  shard: shard_lib.Shard,
  unit: int,
  scores: np.ndarray,
  counts: Mapping[_Count, int],
) -> np.ndarray:
  """Returns saved scores of a unit, or first ones if the table has another."""
  assert shard.eviction is not None
  with tf.device('/device:CPU:0'):  # of this process
    held = tf.constant([counts.get(count, 0) for count in _Count], tf.int64)
    own: np.ndarray = shard.eviction.adopted(scores, unit, held).numpy()
  return own


def _counts_of_all(counts: Sequence[np.ndarray]) -> dict[_Count, int]:
  """Returns counts with which a shard without keys goes on for all of some."""
  lookups = max(int(each[_Count.LOOKUPS]) for each in counts)
  sweeps = [
    int(each[_Count.SWEEP_AT] - each[_Count.LOOKUPS]) for each in counts
  ]
  return {
    _Count.USED: _FIRST,
    **{count: counts_lib.total(counts, count) for count in _SUMMED},
    _Count.LOOKUPS: lookups,
    _Count.SWEEP_AT: min(sweeps) + lookups,
    _Count.FILTERS: int(counts[0][_Count.FILTERS]) or len(counts),
  }


def _slices(
  saved: _Saved, names: Sequence[str], *, with_old_slots: bool = True
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
  """Yields keys that have rows, and what was saved for them.

  Args:
    saved: the shard that has them.
    names: variables with an element for each row.
    with_old_slots: whether to yield keys whose slots are still another key's.
  """
  row_bytes = sum(saved.read(name, 0, 1).nbytes for name in names)
  step = max(1, row_writes.SLICE_BYTES // max(row_bytes, 1))
  # Slots may end before the rows, whose last ones had no update.
  used = min(
    int(saved.counts[_Count.USED]), *(saved.lengths[name] for name in names)
  )
  for first in range(_FIRST, used, step):
    number = min(step, used - first)
    keys = saved.read('keys', first, number)
    values = [saved.read(name, first, number) for name in names]
    if 'addresses' in saved.lengths:
      held = saved.read('addresses', first, number)
      is_wanted = addresses_lib.belong_to_keys(
        held, with_old_slots=with_old_slots
      )
      keys, values = keys[is_wanted], [each[is_wanted] for each in values]
    yield keys, values


def _divide(
  keys: np.ndarray,
  values: Sequence[np.ndarray],
  puts: Sequence[locked.Function],
) -> int:
  """Calls each shard's function with its keys, and what belongs to them.

  Returns:
    For how many keys it was written.
  """
  with tf.device('/device:CPU:0'):  # of this process
    places = index_lib.shard_of(tf.constant(keys, tf.int64), len(puts)).numpy()
  return sum(
    put(keys[is_own], *(each[is_own] for each in values))
    for number, put in enumerate(puts)
    if (is_own := places == number).any()
  )


def _put_rows(
  shard: shard_lib.Shard, keys: tf.Tensor, *values: tf.Tensor
) -> Sequence[Any]:
  """Writes rows of keys, which it makes if needed."""
  for_all = dataclasses.replace(shard, admission=None, eviction=None)
  found = for_all.locate_within_lock(keys, inserts=True)
  rows = addresses_lib.rows_of(found)
  with resources.after(rows):
    return [
      rows,
      *(
        resources.scatter(variable, rows, value)
        for variable, value in zip(_restored(shard), values, strict=True)
      ),
    ]


def _restored(shard: shard_lib.Shard) -> list[Any]:
  """Returns the variables with a saved element for each row."""
  return [shard.values[name] for name in _restored_names(shard)]


def _restored_names(shard: shard_lib.Shard) -> list[str]:
  return [name for name in ('rows', 'scores') if name in shard.values]


def _put_slot(
  shard: shard_lib.Shard, keys: tf.Tensor, values: tf.Tensor
) -> Sequence[Any]:
  """Writes elements of a slot, which is among the shard's values, for keys."""
  slot = shard.values['slot']
  found = shard.locate_within_lock(keys, inserts=False)
  has_row = found >= 0
  rows = addresses_lib.rows_of(tf.boolean_mask(found, has_row))
  num_rows = open_shapes.num_rows(shard.rows)
  with resources.after(resources.fit(slot, num_rows, has_spare=False)):
    own = tf.boolean_mask(values, has_row)
    return [rows, resources.scatter(slot, rows, own)]


def _clear(
  shard: shard_lib.Shard, counts: tf.Tensor, initial: tf.Tensor
) -> Sequence[Any]:
  """Takes all rows from their keys, and sets counts and initial values."""
  lengths = {**dict.fromkeys(weights.BY_ROW, _FIRST), 'free': 1}
  del lengths['rows']
  values = {
    name: apply.read(shard.values[name])[:length]
    for name, length in lengths.items()
    if name in shard.values
  }
  if shard.eviction is not None:  # the scores to come have its unit
    units = tf.constant(shard.eviction.unit, tf.int64)
    values['scores'] = tf.fill([_FIRST], units)
  return [
    (),
    apply.write(shard.counts, counts),
    apply.write(shard.rows, initial),
    *(apply.write(shard.values[name], each) for name, each in values.items()),
  ]


def _restore_cells(
  shards: Sequence[shard_lib.Shard], saved: Sequence[_Saved]
) -> None:
  """Gives each shard the filters of all, in which keys were counted.

  A filter does not tell its keys, so that it cannot be divided. A key is looked
  up in the filter of the shard that it belonged to when filters were made. If
  they have been restored before, all shards have all of them; the highest
  counts are those that are not too low.
  """
  size = saved[0].lengths[_CELLS]
  offset = 0 if int(saved[0].counts[_Count.FILTERS]) else size
  length = offset * (len(saved) - 1) + size
  for shard in shards:
    locked.function(shard, _empty_cells, [tf.TensorSpec([], tf.int64)])(length)
    raise_cells = locked.function(
      shard, _raise_cells, _types([], [shard.values[_CELLS]])
    )
    for number, each in enumerate(saved):
      for first in range(0, size, row_writes.SLICE_BYTES):
        values = each.read(
          _CELLS, first, min(row_writes.SLICE_BYTES, size - first)
        )
        raise_cells(number * offset + first, values)


def _empty_cells(shard: shard_lib.Shard, length: tf.Tensor) -> Sequence[Any]:
  zeros = tf.zeros([length], tf.uint8)
  return [(), apply.write(shard.values[_CELLS], zeros)]


def _raise_cells(
  shard: shard_lib.Shard, first: tf.Tensor, values: tf.Tensor
) -> Sequence[Any]:
  places = first + tf.range(tf.size(values, tf.int64))
  return [places, rows_lib.raise_to(shard.values[_CELLS], places, values)]


def _types(shape: list[Any], variables: Sequence[Any]) -> list[tf.TensorSpec]:
  """Returns the types of int64 numbers and of rows of variables."""
  return [tf.TensorSpec(shape, tf.int64)] + [
    tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in variables
  ]
