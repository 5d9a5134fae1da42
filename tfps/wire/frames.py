"""Several tensors as one, which crosses between two devices at once."""

from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

_COUNT = tf.int64


class Frame:
  """How tensors are laid out in one.

  One tensor is its own frame; tensors of one dtype are joined in that dtype;
  others as bytes. Numbers of rows that are not known beforehand go along.

  Args:
    tensors: what is to be packed; numbers, of which nothing but the first
      dimension may be unknown.
  """

  def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
    self._dtypes = [tensor.dtype for tensor in tensors]
    self._shapes = [tensor.shape.as_list() for tensor in tensors]
    for tensor in tensors:
      if None in tensor.shape.as_list()[1:]:
        raise ValueError(
          f'A tensor of shape {tensor.shape} cannot be packed: only the first '
          'dimension may be unknown.'
        )

  @property
  def num_bytes(self) -> int | None:
    """Of the packed tensor, if it is known beforehand."""
    if self._num_unknown:
      return None
    return sum(
      math.prod(shape) * dtype.size
      for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
    )

  @property
  def _num_unknown(self) -> int:
    return sum(None in shape for shape in self._shapes)

  @property
  def _joint_dtype(self) -> tf.DType:
    dtypes = set(self._dtypes)
    if self._num_unknown:
      return tf.uint8
    return dtypes.pop() if len(dtypes) == 1 else tf.uint8

  def pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The tensors as one."""
    if len(tensors) == 1:
      return tensors[0]
    flat = tf.constant([-1])
    parts = [self._flat(tensor, flat) for tensor in tensors]
    if self._num_unknown:
      parts.insert(0, _as_bytes(tf.stack(self._counts(tensors))))
    return tf.concat(parts, axis=0)

  def unpack(self, packed: tf.Tensor) -> list[tf.Tensor]:
    """What has been packed."""
    if len(self._shapes) == 1:
      return [packed]
    counts = iter(())
    if self._num_unknown:
      length = self._num_unknown * _COUNT.size
      counts = iter(
        tf.unstack(_from_bytes(packed[:length], _COUNT), self._num_unknown)
      )
      packed = packed[length:]
    shapes = [
      [next(counts) if size is None else size for size in shape]
      for shape in self._shapes
    ]
    pieces = tf.split(
      packed, [self._length(i, s) for i, s in enumerate(shapes)]
    )
    return [
      self._restore(piece, i, shape)
      for i, (piece, shape) in enumerate(zip(pieces, shapes, strict=True))
    ]

  def _flat(self, tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    flat = tensor if tensor.shape.rank == 1 else tf.reshape(tensor, shape)
    return flat if self._joint_dtype == tensor.dtype else _as_bytes(flat)

  def _counts(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [
      tf.shape(tensor, out_type=_COUNT)[0]
      for tensor, shape in zip(tensors, self._shapes, strict=True)
      if None in shape
    ]

  def _length(self, index: int, shape: Sequence[Any]) -> Any:
    """Of a tensor's piece, in elements of the joint dtype."""
    size = (
      1
      if self._joint_dtype == self._dtypes[index]
      else (self._dtypes[index].size)
    )
    first, rest = (*shape, 1)[0], shape[1:]
    return first * (math.prod(rest) * size)

  def _restore(
    self, piece: tf.Tensor, index: int, shape: Sequence[Any]
  ) -> tf.Tensor:
    dtype = self._dtypes[index]
    if self._joint_dtype != dtype:
      piece = _from_bytes(piece, dtype)
    known = self._shapes[index]
    tensor = piece if len(known) == 1 else tf.reshape(piece, shape)
    tensor.set_shape(known)
    return tensor


def _as_bytes(flat: tf.Tensor) -> tf.Tensor:
  return tf.reshape(tf.bitcast(flat, tf.uint8), [-1])


def _from_bytes(piece: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  if dtype.size > 1:
    piece = tf.reshape(piece, [-1, dtype.size])
  return tf.bitcast(piece, dtype)
