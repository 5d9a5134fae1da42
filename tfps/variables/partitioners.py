"""Partitioners, which choose the number of shards of a variable.

A partitioner maps a variable's shape and dtype to the number of parts of each
axis, like those of `tf.distribute.experimental.partitioners`. Both kinds work
with TensorFlow's strategies and with those of tfps.
"""

from collections.abc import Sequence
import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class FixedShards:
  """Divides each variable into a fixed number of shards, at most one per row.

  Attributes:
    num_shards: number of shards.
  """

  num_shards: int

  def __post_init__(self) -> None:
    _check_positive('FixedShards', num_shards=self.num_shards)

  def __call__(
    self, shape: Sequence[int], dtype: tf.DType, axis: int = 0
  ) -> list[int]:
    """Returns the number of parts of each axis of a variable.

    Args:
      shape: the shape, fully defined.
      dtype: the dtype.
      axis: the axis to divide.

    Raises:
      ValueError: the shape has unknown dimensions or lacks the axis.
    """
    dimensions = _dimensions('FixedShards', shape, axis)
    return _parts(dimensions, axis, min(self.num_shards, dimensions[axis]))


@dataclasses.dataclass(frozen=True)
class MinSize:
  """Divides each variable into shards of about a given size, up to a limit.

  The number of shards is rounded up, as in TensorFlow. So shards are slightly
  smaller than the size unless it divides the variable evenly.

  Attributes:
    min_shard_bytes: size of a shard.
    max_shards: maximum number of shards.
    bytes_per_string: assumed size of a value of dtype string.
  """

  min_shard_bytes: int = 256 << 10
  max_shards: int = 1
  bytes_per_string: int = 16

  def __post_init__(self) -> None:
    _check_positive('MinSize', **dataclasses.asdict(self))

  def __call__(
    self, shape: Sequence[int], dtype: tf.DType, axis: int = 0
  ) -> list[int]:
    """Returns the number of parts of each axis of a variable.

    Args:
      shape: the shape, fully defined.
      dtype: the dtype.
      axis: the axis to divide.

    Raises:
      ValueError: the shape has unknown dimensions or lacks the axis.
    """
    dimensions = _dimensions('MinSize', shape, axis)
    total = _num_bytes(dimensions, dtype, self.bytes_per_string)
    parts = math.ceil(total / self.min_shard_bytes)
    return _parts(
      dimensions, axis, min(parts, self.max_shards, dimensions[axis])
    )


@dataclasses.dataclass(frozen=True)
class MaxSize:
  """Divides each variable into the fewest shards that do not exceed a size.

  Rows are not divided: a shard of one row may exceed the size.

  Attributes:
    max_shard_bytes: maximum size of a shard.
    max_shards: maximum number of shards, which takes precedence; None for no
      limit.
    bytes_per_string: assumed size of a value of dtype string.
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
    """Returns the number of parts of each axis of a variable.

    Args:
      shape: the shape, fully defined.
      dtype: the dtype.
      axis: the axis to divide.

    Raises:
      ValueError: the shape has unknown dimensions or lacks the axis.
    """
    dimensions = _dimensions('MaxSize', shape, axis)
    rows = dimensions[axis]
    total = _num_bytes(dimensions, dtype, self.bytes_per_string)
    row_bytes = total // max(1, rows)
    rows_per_shard = max(1, self.max_shard_bytes // max(1, row_bytes))
    parts = math.ceil(rows / rows_per_shard)
    return _parts(dimensions, axis, min(parts, self.max_shards or parts))


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


def _parts(dimensions: Sequence[int], axis: int, parts: int) -> list[int]:
  found = [1] * len(dimensions)
  found[axis] = max(1, parts)
  return found


def _check_positive(partitioner: str, **values: int) -> None:
  for name, value in values.items():
    if value < 1:
      raise ValueError(f'{partitioner}: {name} is {value}. Give at least 1.')
