"""Storage of a table's rows and slots beyond the memory of its ps.

The variable of stored rows has those of initial values alone. All others are in
a store of the ps' own process (`server.row_stores`), under the same numbers. So
nothing else knows of rows that move: a store reads and writes rows as a
variable does, each time as a whole, and updates take the same lock.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfps import errors
from tfps._compat import handles
from tfps._compat import host_functions
from tfps._compat import open_shapes
from tfps._compat import survivors
from tfps._compat import whole_values
from tfps.server import row_file
from tfps.server import row_store
from tfps.server import row_stores
from tfps.updates import ps_lock
from tfps.updates import rows as rows_lib
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import policy
from tfps.variables import placement_ledger
from tfps.variables import row_writes

host_functions.gathers(row_stores.READ, handle=0, rows=2)
_ATTRIBUTE = '_tfps_stored_rows'
_FIRST = counts_lib.NUM_INITIAL


@dataclasses.dataclass(frozen=True)
class Storage(policy.Policy):
  """Storage of rows and their slots in files, beside a part of them in memory.

  Attributes:
    memory_bytes: bytes of rows and slots that a table has in memory. Each shard
      has its part.
    directory: where each ps makes its files, which have no names and are gone
      with its process: on a disk of its own, with room for all rows and slots.

  Raises:
    ValueError: the number is not whole or not positive, or no directory is
      named.
  """

  memory_bytes: int
  directory: str | os.PathLike[str]

  def __post_init__(self) -> None:
    self._check_whole('memory_bytes')
    if not os.fspath(self.directory):
      raise ValueError(f'{self}: directory names one on the disk of each ps.')
    # Keras saves no path.
    object.__setattr__(self, 'directory', os.fspath(self.directory))


@dataclasses.dataclass(frozen=True)
class StoredRows:
  """Rows of a variable that are in a store, for code on its device.

  Functions of the store get the variable's handle, so that TensorFlow keeps
  their order among each other and with all else that is done to the variable.

  Attributes:
    place: the store.
  """

  place: row_file.Place

  def read(self, variable: Any, rows: Any) -> tf.Tensor:
    """Returns rows, given their numbers.

    Those that were never written are as the variable's first row.
    """
    return self._read(row_stores.READ, variable, rows)

  def write(self, variable: Any, rows: tf.Tensor, values: tf.Tensor) -> Any:
    """Writes rows that have no initial values; returns a tensor, after which.

    Args:
      variable: the variable.
      rows: their numbers, all different.
      values: of the rows.
    """
    return self._call(row_stores.WRITE, variable, rows, values)

  def freeze(self, variable: Any) -> tf.Tensor:
    """Keeps a copy of all rows until `thaw`; returns how many there are."""
    end = self._call(row_stores.FREEZE, variable, _none_of(variable))
    return tf.maximum(end, _FIRST)

  def read_frozen(self, variable: Any, rows: Any) -> tf.Tensor:
    """Returns rows of that copy, given their numbers."""
    return self._read(row_stores.READ_FROZEN, variable, rows)

  def thaw(self, variable: Any) -> tf.Tensor:
    """Drops the copy; returns a tensor, after which it is gone."""
    return self._call(row_stores.THAW, variable, _none_of(variable))

  def forget(self, variable: Any, *, all_of_group: bool) -> tf.Tensor:
    """Forgets the rows, or all of the group; returns a tensor, after which."""
    return self._call(row_stores.FORGET, variable, all_of_group)

  def counts(self, variable: Any, *, all_of_group: bool) -> tf.Tensor:
    """Returns the `row_store.Counts` of the store, or sums of its group."""
    counts = self._call(row_stores.COUNT, variable, all_of_group)
    return tf.ensure_shape(counts, [len(row_store.Counts())])

  def num_rows(self, variable: Any) -> tf.Tensor:
    """Returns the number of the last row that was written, plus 1."""
    return tf.maximum(self.counts(variable, all_of_group=False)[0], _FIRST)

  def add_to(self, variable: Any, first: tf.Tensor) -> tf.Tensor:
    """Returns all rows, given those of initial values."""
    with tf.device(variable.device):
      end = self.num_rows(variable)
      rows = self.read(variable, tf.range(_FIRST, end, dtype=tf.int64))
      return tf.concat([first, rows], axis=0)

  def take_from(self, variable: Any, value: Any) -> Any:
    """Writes all rows of a value; returns those of initial values."""
    with tf.device(variable.device):
      done = self.forget(variable, all_of_group=False)
      for first, part in _parts(value, variable):
        with tf.control_dependencies([done]):
          done = self._write_from(variable, first, part)
      return value[:_FIRST]

  def put(self, variable: Any, first: int, value: Any) -> None:
    """Writes consecutive rows, outside of functions.

    Args:
      variable: the variable.
      first: number of the first row; not within the initial ones, but 0.
      value: the rows; if they begin with 0, with all initial ones.

    Raises:
      tf.errors.OpError: the ps is lost, or the disk is full.
    """
    with tf.device(variable.device):
      if not first:
        tf.raw_ops.AssignVariableOp(
          resource=variable.handle,
          value=tf.cast(value[:_FIRST], variable.dtype),
        )
        first, value = _FIRST, value[_FIRST:]
      self._write_from(variable, first, tf.cast(value, variable.dtype))

  def _write_from(self, variable: Any, first: int, values: Any) -> tf.Tensor:
    numbers = first + tf.range(tf.shape(values, tf.int64)[0])
    written = self.write(variable, numbers, values)
    if tf.executing_eagerly():
      written.numpy()  # TensorFlow reports failures to whoever asks
    return written

  def _read(self, name: str, variable: Any, rows: Any) -> tf.Tensor:
    rows = tf.convert_to_tensor(rows, tf.int64)
    own = tf.where(rows < _FIRST, rows, tf.zeros_like(rows))
    first = rows_lib.read(variable, own)
    found = self._call(name, variable, rows, first, dtype=variable.dtype)
    return tf.ensure_shape(found, [*rows.shape, *variable.shape[1:]])

  def _call(
    self, name: str, variable: Any, *inputs: Any, dtype: tf.DType = tf.int64
  ) -> tf.Tensor:
    given = [variable.handle, self.place.encoded, *inputs]
    (result,) = host_functions.call(name, given, [dtype])
    return result


def attach(
  rows: Any, storage: Storage, *, name: str, table: str, num_shards: int
) -> None:
  """Keeps the rows of a shard in a store, but for those of initial values.

  Args:
    rows: the variable of the rows, which grows.
    storage: settings of the table.
    name: no other variable on the device has it.
    table: name of the table.
    num_shards: how many shards the table has.

  Raises:
    ValueError: the store cannot use its directory.
    tf.errors.OpError: a ps is lost.
  """
  ps = placement_ledger.ps_index(rows.device)
  task = 'this process' if ps is None else f'ps:{ps}'
  place = row_file.Place(
    name=name,
    group=name,
    memory_bytes=-(-storage.memory_bytes // num_shards),
    directory=os.fspath(storage.directory),
    owner=f'{table} on {task}',
  )
  _attach(rows, place)


def attach_slot(slot: Any, rows: Any, *, name: str) -> None:
  """Keeps a slot of rows as they are kept.

  Args:
    slot: the slot's variable.
    rows: the variable that it is a slot of.
    name: as for `attach`.

  Raises:
    ValueError: the store cannot use its directory.
    tf.errors.OpError: a ps is lost.
  """
  stored = of(rows)
  if stored is not None:
    _attach(slot, dataclasses.replace(stored.place, name=name))


def _attach(variable: Any, place: row_file.Place) -> None:
  row_stores.offer()  # the variable may be in this process
  stored = StoredRows(place)
  with tf.init_scope(), tf.device(variable.device):
    try:
      survivors.surviving(variable, lambda: _open(variable, stored))
    except tf.errors.InvalidArgumentError as error:
      raise ValueError(errors.first_line(error)) from error
  note(variable, stored)
  whole_values.make_whole(variable, stored)


def note(variable: Any, stored: StoredRows) -> None:
  """Lets `of` find the stored rows of a variable or `resources.Resource`."""
  setattr(handles.inner(variable), _ATTRIBUTE, stored)


def of(variable: Any) -> StoredRows | None:
  """Returns the stored rows of a variable, or None if it has all itself."""
  found: StoredRows | None = getattr(handles.inner(variable), _ATTRIBUTE, None)
  return found


def forget_earlier(variable: Any, is_new: tf.Tensor) -> list[tf.Tensor]:
  """Forgets rows of an earlier variable of the same name, if there are some.

  Args:
    variable: of a shard's rows.
    is_new: whether the shard has no row yet.

  Returns:
    Tensors, after which it has.
  """
  stored = of(variable)
  if stored is None:
    return []
  return [
    tf.cond(
      is_new,
      lambda: stored.forget(variable, all_of_group=True),
      lambda: tf.constant(0, tf.int64),
    )
  ]


def counts(rows: Any) -> row_store.Counts:
  """Returns sums of counts of a shard's rows and their slots.

  Args:
    rows: the variable of the rows; without a store, all are zero.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  stored = of(rows)
  if stored is None:
    return row_store.Counts()
  with tf.init_scope(), tf.device(rows.device):
    found = survivors.surviving(
      rows, lambda: stored.counts(rows, all_of_group=True).numpy()
    )
  return row_store.Counts(*map(int, found))


def _open(variable: Any, stored: StoredRows) -> None:
  """Makes the store, and moves rows there that the variable has begun with.

  A variable that is restored when it is made has all rows itself. Whoever comes
  first moves them, under the lock, before any use of the store.
  """
  stored.write(variable, tf.zeros([0], tf.int64), _none_of(variable)).numpy()
  if open_shapes.num_rows(variable) > _FIRST:
    move = functools.partial(_move, variable, stored)
    # Without autograph, which is not safe while another thread traces.
    tf.function(move, autograph=False)().numpy()


def _move(variable: Any, stored: StoredRows) -> tf.Tensor:
  found: list[tf.Tensor] = []

  def move() -> tf.Tensor:
    # A value that is read as a whole is taken for one of the handle's shape.
    numbers = tf.range(open_shapes.num_rows(variable))
    first, rest = (
      rows_lib.read(variable, rows)
      for rows in (numbers[:_FIRST], numbers[_FIRST:])
    )
    forgotten = stored.forget(variable, all_of_group=False)
    with tf.control_dependencies([forgotten]):
      moved = stored.write(variable, numbers[_FIRST:], rest)
    with tf.control_dependencies([moved, first]):
      written = tf.raw_ops.AssignVariableOp(
        resource=variable.handle, value=first
      )
    with tf.control_dependencies([written]):
      return tf.constant(True)

  def job() -> Sequence[Any]:
    is_due = open_shapes.num_rows(variable) > _FIRST
    found.append(tf.cond(is_due, move, lambda: tf.constant(False)))
    return found

  ps_lock.run([ps_lock.Job(variable, job)])
  return found[0]


def _none_of(variable: Any) -> tf.Tensor:
  """Returns no rows, which tell of what kind they are."""
  return tf.zeros([0, *variable.shape[1:]], variable.dtype)


def _parts(value: Any, variable: Any) -> Iterator[tuple[int, Any]]:
  """Yields rows of a value but initial ones, each time with the first number.

  An array crosses to the ps in slices.
  """
  if not isinstance(value, np.ndarray):
    yield _FIRST, tf.cast(value[_FIRST:], variable.dtype)
    return
  step = max(1, row_writes.SLICE_BYTES // value[:1].nbytes)
  for first in range(_FIRST, len(value), step):
    part = value[first : first + step]
    yield first, tf.constant(part, variable.dtype)
