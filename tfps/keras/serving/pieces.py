"""Pieces of a model's variables: each on one device, with rows to compare."""

from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any

import tensorflow as tf

from tfps._compat import handles
from tfps._compat import keras_variables
from tfps._compat import open_shapes
from tfps.variables import row_writes

# Bytes of a row that is compared under the lock.
_NARROW_BYTES = 8
# Bytes of a variable that is one row to comparisons, as all of rank 1 are.
_WHOLE_BYTES = 4 << 10
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
