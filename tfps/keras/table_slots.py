"""Slots of the rows of tables that grow, saved with their keys.

How many variables an optimizer has depends on the shards of tables, and their
slots are in the order of rows. So what is saved of them has the keys, too, and
is apart from the other variables, whose numbers then do not depend on shards.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any
import warnings

from tfps._compat import checkpoint_graph
from tfps._compat import handles
from tfps._compat import keras_variables
from tfps._compat import open_shapes
from tfps.keras.embeddings import slices
from tfps.updates.tables import resharding
from tfps.updates.tables import resources
from tfps.updates.tables import saved_shards
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import storage

_ATTRIBUTE = '_tfps_table'


@dataclasses.dataclass(frozen=True)
class TableSlots:
  """Slots of the rows of one table, in an optimizer.

  Attributes:
    shards: the shards of the table.
    of_shard: the slots of each shard's rows.
  """

  shards: Sequence[shard_lib.Shard]
  of_shard: Sequence[list[Any]]

  def save(self, store: Any, prefix: str) -> None:
    """Writes all slots' values to a store, at names with a prefix."""
    views = [
      saved_shards.view_slots(
        shard, {f'slot{i}': slot for i, slot in enumerate(slots)}
      )
      for shard, slots in zip(self.shards, self.of_shard, strict=True)
    ]
    slices.save(store, views, prefix)

  def is_saved(self, store: Any, prefix: str) -> bool:
    """Returns whether a store has values of all slots at a prefix."""
    saved = slices.load(store, prefix)
    names = {f'slot{i}' for i in range(len(self.of_shard[0]))}
    return bool(saved) and names <= set(saved[0].lengths)

  def load(self, store: Any, prefix: str, *, needs_keys: bool = True) -> None:
    """Sets all slots to a store's values at a prefix.

    Args:
      store: of Keras, or another mapping.
      prefix: begins the names of the entries.
      needs_keys: whether the table must have any of the saved keys.
    """
    saved = slices.load(store, prefix)
    for i, slots in enumerate(zip(*self.of_shard, strict=True)):
      resharding.restore_slots(
        slots, self.shards, saved, f'slot{i}', needs_keys=needs_keys
      )


def save(own: Callable[..., None], optimizer: Any, store: Any) -> None:
  """Saves an optimizer's variables, those of tables slice by slice.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    store: of Keras, or another mapping.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  others, tables = _divided(optimizer)
  if not tables:
    own(store)
    return
  for i, variable in enumerate(others):
    store[str(i)] = variable.numpy()
  for i, table in enumerate(tables):
    table.save(store, f'table{i}_')


def load(own: Callable[..., None], optimizer: Any, store: Any) -> None:
  """Loads what `save` has saved, if tables have other shards, too.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    store: of Keras, or another mapping.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  others, tables = _divided(optimizer)
  if not tables:
    own(store)
    return
  keys = store.keys()
  saved = [key for key in keys if not slices.is_entry(key)]
  if len(saved) != len(others) or not all(
    table.is_saved(store, f'table{i}_') for i, table in enumerate(tables)
  ):
    warnings.warn(
      f'Skipping variable loading for optimizer {optimizer.name!r}: other '
      'variables were saved than it has. Load what was saved of an optimizer '
      'of the same kind, for the same model.',
      stacklevel=2,
    )
    return
  for i, variable in enumerate(others):
    variable.assign(store[str(i)])
  for i, table in enumerate(tables):
    table.load(store, f'table{i}_')


@contextlib.contextmanager
def kept(optimizer: Any, shards: Sequence[shard_lib.Shard]) -> Iterator[None]:
  """Returns a context after which the keys of a table have their slots again.

  In it, the table may be given other keys, which then have initial slots.

  Args:
    optimizer: of Keras, which may have slots of the table; None for none.
    shards: the table's.
  """
  inner = getattr(optimizer, 'inner_optimizer', None)
  tables = [
    table
    for each in (optimizer, inner)
    if each is not None
    for table in _divided(each)[1]
    if table.shards is shards
  ]
  stores: list[dict[str, Any]] = [{} for _ in tables]
  for table, store in zip(tables, stores, strict=True):
    table.save(store, '')
  yield
  for table, store in zip(tables, stores, strict=True):
    table.load(store, '', needs_keys=False)


def begin_slot(optimizer: Any, slot: Any) -> None:
  """Stores slots that have just been made as rows, and lets them be restored.

  A recovery may restore them: those of one kind, once the last shard of the
  table has one.

  Args:
    optimizer: the optimizer.
    slot: Keras' variable.

  Raises:
    errors.CheckpointError: what was saved does not fit.
    tf.errors.OpError: a ps is lost.
  """
  shards, number = table_of(slot) or ((), 0)
  if shards:
    value = keras_variables.value_of(slot)
    name = resources.unique_name(value)
    storage.attach_slot(value, shards[number].rows, name=name)
  if number + 1 != len(shards):
    return
  saved = _saved_tables(shards)
  if saved is None:
    return
  head, _, tail = slot.path.rpartition(f'rows_{number}_')
  paths = [f'{head}rows_{i}_{tail}' for i in range(len(shards))]
  found = {
    variable.path: keras_variables.value_of(variable)
    for variable in optimizer._variables
    if variable.path in paths and (table_of(variable) or (None,))[0] is shards
  }
  saved.restore_slots([found[path] for path in paths], shards)


def begin_table(shards: Sequence[shard_lib.Shard]) -> None:
  """Lets a recovery restore a table that has just been made.

  Args:
    shards: its shards.

  Raises:
    errors.CheckpointError: what was saved does not fit.
    tf.errors.OpError: a ps is lost.
  """
  saved = _saved_tables(shards)
  if saved is not None:
    saved.restore(shards)


def _saved_tables(shards: Sequence[shard_lib.Shard]) -> Any:
  """Returns the tables of the snapshot with which a table begins, or None."""
  strategy = checkpoint_graph.strategy_of(shards[0].rows)
  guard = getattr(strategy, 'guard', None)
  return None if guard is None else guard.copies.saved_tables


def note_rows(rows: Any, table: Any, number: int) -> None:
  """Lets `table_of` find a table by the rows of one of its shards.

  Args:
    rows: Keras' variable.
    table: the table, which has `shards`.
    number: number of the shard.
  """
  setattr(rows, _ATTRIBUTE, (table, number))


def table_of(slot: Any) -> tuple[Sequence[shard_lib.Shard], int] | None:
  """Returns the table whose rows a variable is a slot of, or None.

  Args:
    slot: a Keras variable, which may be the rows themselves.

  Returns:
    The table's shards, and the number of that which the slot belongs to.
  """
  value = keras_variables.value_of(slot)
  rows = open_shapes.followed(handles.inner(value))
  rows = slot if rows is None else rows
  table, number = getattr(rows, _ATTRIBUTE, (None, 0))
  return (table.shards, number) if table is not None and table.shards else None


def _divided(optimizer: Any) -> tuple[list[Any], list[TableSlots]]:
  """Returns other variables of an optimizer, and the slots of each table."""
  others: list[Any] = []
  tables: dict[int, TableSlots] = {}
  # That of an optimizer within it belongs to that one.
  own = {id(variable) for variable in optimizer._variables}
  for variable in optimizer.variables:
    found = table_of(variable)
    if found is None:
      others.append(variable)
    elif id(variable) in own:
      shards, number = found
      table = tables.setdefault(
        id(shards), TableSlots(shards, [[] for _ in shards])
      )
      table.of_shard[number].append(keras_variables.value_of(variable))
  return others, list(tables.values())
