"""Pieces of a model's variables: each on one device, with rows to compare."""

from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps._compat import handles
from tfps._compat import keras_variables
from tfps._compat import open_shapes
from tfps.updates.tables import resources
from tfps.updates.tables import storage
from tfps.variables import row_writes

# Bytes of a row that is compared under the lock.
_NARROW_BYTES = 8
# Bytes of a variable that is one row to comparisons, as all of rank 1 are.
_WHOLE_BYTES = 4 << 10
_LAST_NUMBER = re.compile(r'\d*$')


class Layout(NamedTuple):
  """Rows of a piece without its handle; equal for similar ones.

  Attributes:
    dtype: of elements.
    row_shape: of a row.
    is_whole: whether all of the piece is one row.
    stored: rows that are in a store; None if the variable has all itself.
  """

  dtype: tf.DType
  row_shape: tuple[int, ...]
  is_whole: bool
  stored: storage.StoredRows | None

  @property
  def row_bytes(self) -> int:
    """The number of bytes of one row."""
    size: int = self.dtype.size
    return size * math.prod(self.row_shape)

  def bound(self, handle: tf.Tensor) -> resources.Resource:
    """Returns a variable of the layout, which has rows, given its handle."""
    shape = (None, *self.row_shape)
    kind = resources.Kind('rows', self.dtype, shape, self.stored)
    return kind.bound(handle)


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
    """The device of the variable."""
    return str(self.variable.device)

  @property
  def dtype(self) -> tf.DType:
    """The type of the values."""
    dtype: tf.DType = self.variable.dtype
    return dtype

  @property
  def grows(self) -> bool:
    """True if rows can be added to the variable."""
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
  def layout(self) -> Layout:
    """The rows without their handle, equal for similar pieces."""
    shape = tuple(self.variable.shape.as_list())
    return Layout(
      self.dtype,
      shape if self.is_whole else shape[1:],
      self.is_whole,
      storage.of(self.variable),
    )

  @property
  def row_shape(self) -> tuple[int, ...]:
    """The shape of one row."""
    return self.layout.row_shape

  @property
  def row_bytes(self) -> int:
    """The number of bytes of one row."""
    return self.layout.row_bytes

  @property
  def is_narrow(self) -> bool:
    """True if rows are so small that they are compared under the lock."""
    return self.is_whole or self.row_bytes <= _NARROW_BYTES

  @property
  def group(self) -> tuple[str, str, str] | None:
    """Variables of the same are shards of one growing table; None of none."""
    layer, _, name = self.name.rpartition('/')
    match = _LAST_NUMBER.search(name)
    return (self.device, layer, match[0]) if self.grows and match else None


def pieces_of(variables: Sequence[Any]) -> list[Piece]:
  """Returns the pieces of a model's variables that have elements.

  Those in which a table counts keys without a row are left out: they are no
  part of what is served, large, and different after each step.

  Args:
    variables: Keras variables that have values.

  Raises:
    ValueError: a variable holds strings.
  """
  pieces = []
  for number, variable in enumerate(variables):
    if not getattr(variable, 'tfps_is_served', True):
      continue
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
