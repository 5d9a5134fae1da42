"""Rows of variables that have changed, found on the devices of the variables.

Beside each variable or shard, its device keeps a digest of each row as of the
last write. A pass compares the rows with it, so it finds changes however they
were made. Rows are read in slices, so that a pass needs little memory.

Wide rows are compared without the lock of updates, as that takes a while. Then,
under the lock, the rows that were found are read again, together with narrow
rows, all of which are compared there. The rows of a growing table are a wide
variable, their keys a narrow one: a row whose key has changed is read, too. So
what a pass finds on a device is of one moment, except for wide rows that
changed between the two comparisons; the next pass finds these.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import math
import re
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps._compat import handles
from tfps._compat import keras_variables
from tfps._compat import open_shapes
from tfps._compat import side_executor
from tfps.updates import ps_lock
from tfps.variables import row_writes

# Bytes of rows that are compared at once.
_SLICE_BYTES = 16 << 20
# Bytes of a row that is compared under the lock.
_NARROW_BYTES = 8
# Bytes of a variable that is one row to comparisons, as all of rank 1 are.
_WHOLE_BYTES = 4 << 10

_HANDLE = tf.TensorSpec([], tf.resource)
_NUMBER = tf.TensorSpec([], tf.int64)
_ROWS = tf.TensorSpec([None], tf.int64)
_PAIR = _HANDLE, _HANDLE
_NOTE_SPECS = _HANDLE, _NUMBER, _ROWS, _ROWS, _ROWS

_LAST_NUMBER = re.compile(r'\d*$')


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
  """Variable, or shard of one, on one device.

  Attributes:
    number: number of the variable among those of the model.
    name: its path.
    first: number of its first row in the whole variable.
    variable: a `tf.Variable` that TensorFlow does not wrap.
  """

  number: int
  name: str
  first: int
  variable: Any

  @property
  def device(self) -> str:
    return str(self.variable.device)

  @property
  def dtype(self) -> tf.DType:
    dtype: tf.DType = self.variable.dtype
    return dtype

  @property
  def grows(self) -> bool:
    return open_shapes.has_open_rows(self.variable)

  @property
  def is_whole(self) -> bool:
    """True if comparisons take all of it for one row."""
    shape = self.variable.shape
    if self.grows:
      return False
    num_bytes = self.dtype.size * shape.num_elements()
    return shape.rank < 2 or num_bytes <= _WHOLE_BYTES

  @property
  def row_shape(self) -> list[int]:
    shape: list[int] = self.variable.shape.as_list()
    return shape if self.is_whole else shape[1:]

  @property
  def row_bytes(self) -> int:
    return self.dtype.size * math.prod(self.row_shape)

  @property
  def is_narrow(self) -> bool:
    return self.is_whole or self.row_bytes <= _NARROW_BYTES

  @property
  def group(self) -> tuple[str, str, str] | None:
    """Variables of the same are shards of one growing table; None of none."""
    layer, _, name = self.name.rpartition('/')
    match = _LAST_NUMBER.search(name)
    return (self.device, layer, match[0]) if self.grows and match else None


def pieces_of(variables: Sequence[Any]) -> list[Piece]:
  """Returns the pieces of a model's variables that have elements.

  Args:
    variables: Keras variables that have values.

  Raises:
    ValueError: a variable holds strings.
  """
  pieces = []
  for number, variable in enumerate(variables):
    first = 0
    for shard in row_writes.shards_of(keras_variables.value_of(variable)):
      own = handles.inner(shard)
      if own.dtype == tf.string:
        raise ValueError(
          f'{variable.path} holds strings, and deltas have none. Keep them in '
          'a layer whose vocabulary is an asset, as keras.layers.StringLookup.'
        )
      piece = Piece(number, variable.path, first, own)
      first += own.shape[0] or 0 if own.shape.rank else 0
      if piece.row_bytes:
        pieces.append(piece)
  return pieces


class _Found(NamedTuple):
  """Rows of a piece that have changed, as tensors on its device.

  Attributes:
    num_rows: how many it has.
    first_digest: the digest of its first row, of shape [1].
    rows: the numbers of those that have changed.
    values: their values, uint8 of shape [n, row_bytes].
    digests: their digests.
  """

  num_rows: Any
  first_digest: Any
  rows: Any
  values: Any
  digests: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Change:
  """Rows of a piece that have changed.

  Attributes:
    piece: the piece.
    num_rows: how many rows it has.
    rows: the numbers of those that have changed, in the piece.
    found: the same and their values, on the piece's device.
  """

  piece: Piece
  num_rows: int
  rows: np.ndarray
  found: _Found

  def values(self) -> Iterator[np.ndarray]:
    """Yields the values of rows, uint8 of shape [n, row_bytes].

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    step = max(1, row_writes.SLICE_BYTES // self.piece.row_bytes)
    for first in range(0, len(self.rows), step):
      with side_executor.run_aside(self.piece.device):
        part = self.found.values
        if len(self.rows) > step:
          part = part[first : first + step]
        values: np.ndarray = part.numpy()
      yield values


class Shadows:
  """Digests of the rows of variables, as of the last write.

  Args:
    pieces: the variables.
    values: returns the values that were written last, of the whole variable of
      a piece.

  Raises:
    tf.errors.OpError: a ps is lost.
  """

  def __init__(
    self, pieces: Sequence[Piece], values: Callable[[Piece], Any]
  ) -> None:
    devices = dict.fromkeys(piece.device for piece in pieces)
    self._by_device = {
      device: [piece for piece in pieces if piece.device == device]
      for device in devices
    }
    self._shadows = {
      piece: _shadow(piece, _digests_of(piece, values(piece)))
      for piece in pieces
    }
    self._functions: dict[Any, Any] = {}

  def find(self) -> list[Change]:
    """Returns the changed rows of each piece that has some.

    Raises:
      tf.errors.OpError: a ps is lost, or has lost the digests.
    """
    return [
      change
      for device, pieces in self._by_device.items()
      for change in self._find_on(device, pieces)
    ]

  def note(self, changes: Sequence[Change]) -> None:
    """Notes that changes were written.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    for change in changes:
      device, found = change.piece.device, change.found
      arguments = (found.num_rows, found.first_digest, found.rows)
      handle = self._shadows[change.piece].handle
      with side_executor.run_aside(device):
        note = self._function(_note, device, _NOTE_SPECS)
        note(handle, *arguments, found.digests).numpy()

  def _find_on(self, device: str, pieces: Sequence[Piece]) -> list[Change]:
    handles_of = [
      (piece.variable.handle, self._shadows[piece].handle) for piece in pieces
    ]
    with side_executor.run_aside(device):
      candidates = [
        self._function(
          _scan,
          device,
          _PAIR,
          *(piece.dtype, tuple(piece.row_shape), piece.is_whole),
        )(*own)
        for piece, own in zip(pieces, handles_of, strict=True)
        if not piece.is_narrow
      ]
      specs = [_PAIR] * len(pieces), [(_ROWS, _NUMBER)] * len(candidates)
      find = self._function(_find_locked, device, specs, tuple(pieces))
      found = [_Found(*each) for each in find(handles_of, candidates)]
      return [
        Change(piece, int(each.num_rows), rows, each)
        for piece, each in zip(pieces, found, strict=True)
        if len(rows := each.rows.numpy()) or self._has_resized(piece, each)
      ]

  def _has_resized(self, piece: Piece, found: _Found) -> bool:
    if not piece.grows:
      return False
    known = open_shapes.num_rows(self._shadows[piece])
    return bool(known.numpy() != found.num_rows.numpy())

  def _function(
    self, function: Any, device: str, specs: Any, *arguments: Any
  ) -> Any:
    """Returns a function of tensors, and of further arguments, for a device."""
    key = function, device, arguments
    if key not in self._functions:
      # Without autograph, which is not safe while another thread traces.
      self._functions[key] = tf.function(
        functools.partial(_on, device, function, arguments),
        input_signature=specs,
        autograph=False,
      )
    return self._functions[key]


def _on(device: str, function: Any, last: Any, *arguments: Any) -> Any:
  with tf.device(device):
    return function(*arguments, *last)


def _find_locked(
  handles_of: Sequence[tuple[tf.Tensor, tf.Tensor]],
  candidates: Sequence[tuple[tf.Tensor, tf.Tensor]],
  pieces: Sequence[Piece],
) -> list[_Found]:
  """Finds the changed rows of all pieces of a device, under its lock."""
  found: dict[Piece, _Found] = {}
  wide = [piece for piece in pieces if not piece.is_narrow]
  scanned = dict(zip(wide, candidates, strict=True))

  def find() -> list[Any]:
    own = dict(zip(pieces, handles_of, strict=True))
    # Those of narrow rows tell which wide ones to read.
    for piece in sorted(pieces, key=lambda piece: not piece.is_narrow):
      if piece.is_whole:
        rows = tf.zeros([1], tf.int64)
      elif piece.is_narrow:
        rows, _ = _scan(
          *own[piece], piece.dtype, piece.row_shape, piece.is_whole
        )
      else:
        rows = _due(piece, own[piece][0], scanned[piece], found)
      found[piece] = _changed(piece, *own[piece], rows)
    return [tensor for each in found.values() for tensor in each]

  held = _Held(pieces[0].device, handles_of[0][0])
  ps_lock.run([ps_lock.Job(held, find)])
  return [found[piece] for piece in pieces]


class _Held(NamedTuple):
  """The device whose lock is taken, and the handle of a variable on it."""

  device: str
  handle: tf.Tensor


def _due(
  piece: Piece,
  handle: tf.Tensor,
  scanned: tuple[tf.Tensor, tf.Tensor],
  found: dict[Piece, _Found],
) -> tf.Tensor:
  """Returns the numbers of wide rows to read under the lock, without order."""
  rows, num_scanned = scanned
  if not piece.grows:
    return rows
  num_rows = _num_rows(handle, is_whole=False)
  others = [
    each.rows
    for other, each in found.items()
    if other.is_narrow and other.group == piece.group
  ]
  new = tf.range(num_scanned, tf.maximum(num_scanned, num_rows))
  due, _ = tf.unique(tf.concat([rows, *others, new], axis=0))
  return tf.gather(due, _where(due < num_rows))


def _changed(
  piece: Piece, handle: tf.Tensor, shadow: tf.Tensor, rows: tf.Tensor
) -> _Found:
  """Returns those of some rows of a piece that have changed."""
  read = functools.partial(
    _read, handle, piece.dtype, piece.row_shape, piece.is_whole
  )
  values = read(rows)
  digests = _digests(values)
  first = _digests(read(tf.zeros([1], tf.int64)))
  changed = _where(tf.not_equal(digests, _noted(shadow, rows, first)))
  return _Found(
    _num_rows(handle, is_whole=piece.is_whole),
    first,
    tf.gather(rows, changed),
    _bytes(tf.gather(values, changed), piece.row_bytes),
    tf.gather(digests, changed),
  )


def _scan(
  handle: tf.Tensor,
  shadow: tf.Tensor,
  dtype: tf.DType,
  row_shape: Sequence[int],
  is_whole: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Compares all rows of a variable, slice by slice.

  Returns:
    The numbers of the changed ones, and how many rows there are.
  """
  read = functools.partial(_read, handle, dtype, row_shape, is_whole)
  num_rows = _num_rows(handle, is_whole=is_whole)
  first_digest = _digests(read(tf.zeros([1], tf.int64)))
  row_bytes = dtype.size * math.prod(row_shape)
  step = max(1, _SLICE_BYTES // row_bytes)

  def compare(first: tf.Tensor, found: tf.Tensor) -> tuple[Any, Any]:
    rows = tf.range(first, tf.minimum(first + step, num_rows))
    digests = _digests(read(rows))
    has_changed = tf.not_equal(digests, _noted(shadow, rows, first_digest))
    more = first + _where(has_changed)
    return first + step, tf.concat([found, more], axis=0)

  _, found = tf.while_loop(
    lambda first, _: first < num_rows,
    compare,
    [tf.constant(0, tf.int64), tf.zeros([0], tf.int64)],
    shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    parallel_iterations=1,
  )
  return found, num_rows


def _note(
  shadow: tf.Tensor,
  num_rows: tf.Tensor,
  first_digest: tf.Tensor,
  rows: tf.Tensor,
  digests: tf.Tensor,
) -> tf.Tensor:
  """Notes the digests of rows; new rows not among them are like the first."""

  def resize() -> tf.Tensor:
    old = tf.raw_ops.ReadVariableOp(resource=shadow, dtype=tf.int64)
    old = tf.ensure_shape(old, [None])[:num_rows]
    added = tf.repeat(first_digest, num_rows - known)
    value = tf.cond(
      num_rows > known, lambda: tf.concat([old, added], 0), lambda: old
    )
    written = tf.raw_ops.AssignVariableOp(resource=shadow, value=value)
    with tf.control_dependencies([written]):
      return tf.constant(True)

  known = _num_rows(shadow, is_whole=False)
  resized = tf.cond(
    tf.not_equal(known, num_rows), resize, lambda: tf.constant(False)
  )
  with tf.control_dependencies([resized]):
    written = tf.raw_ops.ResourceScatterUpdate(
      resource=shadow, indices=rows, updates=digests
    )
  with tf.control_dependencies([written]):
    return tf.constant(True)


def _read(
  handle: tf.Tensor,
  dtype: tf.DType,
  row_shape: Sequence[int],
  is_whole: bool,
  rows: tf.Tensor,
) -> tf.Tensor:
  """Reads rows of a variable; a whole one has a single row."""
  if is_whole:
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    return tf.reshape(value, [1, math.prod(row_shape)])
  # After a scatter, reading a variable copies all of it.
  found = tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=dtype)
  return tf.reshape(found, [-1, math.prod(row_shape)])


def _num_rows(handle: tf.Tensor, *, is_whole: bool) -> tf.Tensor:
  if is_whole:
    return tf.constant(1, tf.int64)
  return tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)[0]


def _noted(
  shadow: tf.Tensor, rows: tf.Tensor, first_digest: tf.Tensor
) -> tf.Tensor:
  """Returns the digests of rows as of the last write; of new ones the first."""
  known = _num_rows(shadow, is_whole=False)
  digests = tf.raw_ops.ResourceGather(
    resource=shadow, indices=tf.minimum(rows, known - 1), dtype=tf.int64
  )
  digests = tf.reshape(digests, tf.shape(rows))
  return tf.where(rows < known, digests, first_digest)


def _digests(values: tf.Tensor) -> tf.Tensor:
  """Returns the digest of each row, int64, of values of shape [n, width]."""
  if values.dtype == tf.int64 and values.shape[1] == 1:
    return values[:, 0]
  if values.dtype == tf.bool:
    values = tf.cast(values, tf.uint8)
  digests = tf.raw_ops.Fingerprint(data=values, method='farmhash64')
  return tf.bitcast(tf.ensure_shape(digests, [None, 8]), tf.int64)


def _where(condition: tf.Tensor) -> tf.Tensor:
  """Returns where a condition of shape [n] holds, int64."""
  return tf.reshape(tf.where(condition), [-1])


def _bytes(values: tf.Tensor, row_bytes: int) -> tf.Tensor:
  if values.dtype == tf.bool:
    values = tf.cast(values, tf.uint8)
  return tf.reshape(tf.bitcast(values, tf.uint8), [-1, row_bytes])


def _digests_of(piece: Piece, values: Any) -> np.ndarray:
  """Returns the digests of a piece's rows in the whole variable's values."""
  if piece.is_whole:
    shape = piece.variable.shape
    if shape.rank:
      values = values[piece.first : piece.first + shape[0]]
    return _digests(tf.reshape(values, [1, -1])).numpy()
  num_rows = piece.variable.shape[0]
  end = len(values) if num_rows is None else piece.first + num_rows
  step = max(1, _SLICE_BYTES // piece.row_bytes)
  width = math.prod(piece.row_shape)
  return np.concatenate(
    [
      _digests(
        tf.reshape(values[at : min(at + step, end)], [-1, width])
      ).numpy()
      for at in range(piece.first, end, step)
    ]
  )


def _shadow(piece: Piece, digests: np.ndarray) -> Any:
  with side_executor.run_aside(piece.device):
    value = row_writes.send(digests, tf.int64)
    shadow = handles.scratch(digests.shape, tf.int64)
    shadow.assign(value)
    open_shapes.num_rows(shadow).numpy()  # tells of a lost ps
  return shadow
