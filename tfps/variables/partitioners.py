"""How many shards a variable is cut into.

A partitioner is called with a variable's shape and dtype and returns how many
parts each axis is cut into, as `tf.distribute.experimental.partitioners` does.
So these serve TensorFlow's own strategy too, and TensorFlow's serve ours.
"""

from collections.abc import Sequence
import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class FixedShards:
  """As many shards as given, or as many as there are rows.

  Attributes:
    num_shards: how many.
  """

  num_shards: int

  def __post_init__(self) -> None:
    _check_positive('FixedShards', num_shards=self.num_shards)

  def __call__(
    self, shape: Sequence[int], dtype: tf.DType, axis: int = 0
  ) -> list[int]:
    """Parts of each axis of a variable."""
    dimensions = _dimensions('FixedShards', shape, axis)
    return _cut(dimensions, axis, min(self.num_shards, dimensions[axis]))


@dataclasses.dataclass(frozen=True)
class MinSize:
  """As many shards as there are pieces of a size, up to a limit.

  What is left over is a piece, too, as for TensorFlow. So shards are a little
  smaller than the size unless it divides the variable evenly.

  Attributes:
    min_shard_bytes: the size.
    max_shards: the limit.
    bytes_per_string: the assumed size of a value of type string.
  """

  min_shard_bytes: int = 256 << 10
  max_shards: int = 1
  bytes_per_string: int = 16

  def __post_init__(self) -> None:
    _check_positive('MinSize', **dataclasses.asdict(self))

  def __call__(
    self, shape: Sequence[int], dtype: tf.DType, axis: int = 0
  ) -> list[int]:
    """Parts of each axis of a variable."""
    dimensions = _dimensions('MinSize', shape, axis)
    total = _num_bytes(dimensions, dtype, self.bytes_per_string)
    most = math.ceil(total / self.min_shard_bytes)
    return _cut(dimensions, axis, min(most, self.max_shards, dimensions[axis]))


@dataclasses.dataclass(frozen=True)
class MaxSize:
  """As few shards as leave each at most so large, up to a limit.

  A row is never cut, so that a shard may be larger if a row is.

  Attributes:
    max_shard_bytes: the greatest size of a shard.
    max_shards: the limit; None for none.
    bytes_per_string: the assumed size of a value of type string.
  """

  max_shard_bytes: int
  max_shards: int | None = None
  bytes_per_string: int = 16

  def __post_init__(self) -> None:
    given = dataclasses.asdict(self)
    _check_positive(
      'MaxSize', **{k: v for k, v in given.items() if v is not None}
    )

  def __call__(
    self, shape: Sequence[int], dtype: tf.DType, axis: int = 0
  ) -> list[int]:
    """Parts of each axis of a variable."""
    dimensions = _dimensions('MaxSize', shape, axis)
    rows = dimensions[axis]
    total = _num_bytes(dimensions, dtype, self.bytes_per_string)
    row_bytes = total // max(1, rows)
    rows_per_shard = max(1, self.max_shard_bytes // max(1, row_bytes))
    parts = math.ceil(rows / rows_per_shard)
    return _cut(dimensions, axis, min(parts, self.max_shards or parts))


def _dimensions(partitioner: str, shape: Sequence[int], axis: int) -> list[int]:
  given = tf.TensorShape(shape)
  if not given.is_fully_defined():
    raise ValueError(
      f'{partitioner}: the shape {given} has unknown dimensions. '
      'Give the variable a known shape.'
    )
  if not -given.rank <= axis < given.rank:
    raise ValueError(
      f'{partitioner}: the shape {given} has no axis {axis}. '
      f'Give an axis below {given.rank}, and no scalar.'
    )
  dimensions: list[int] = given.as_list()
  return dimensions


def _num_bytes(
  dimensions: Sequence[int], dtype: tf.DType, bytes_per_string: int
) -> int:
  dtype = tf.as_dtype(dtype)
  size = bytes_per_string if dtype == tf.string else dtype.size
  return math.prod(dimensions) * size


def _cut(dimensions: Sequence[int], axis: int, parts: int) -> list[int]:
  cuts = [1] * len(dimensions)
  cuts[axis] = max(1, parts)
  return cuts


def _check_positive(partitioner: str, **values: int) -> None:
  for name, value in values.items():
    if value < 1:
      raise ValueError(f'{partitioner}: {name} is {value}. Give at least 1.')
