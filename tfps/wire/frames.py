"""Several tensors as one, which crosses between two devices at once."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.wire import shapes


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
    self._shapes = shapes.Shapes(tensors)
    for tensor in tensors:
      if None in tensor.shape.as_list()[1:]:
        raise ValueError(
          f'A tensor of shape {tensor.shape} cannot be packed: only the first '
          'dimension may be unknown.'
        )

  @property
  def num_bytes(self) -> int | None:
    """Of the packed tensor, if it is known beforehand."""
    if self._shapes.num_unknown:
      return None
    return sum(
      shapes.num_elements(shape) * dtype.size
      for shape, dtype in zip(self._shapes.known, self._dtypes, strict=True)
    )

  @property
  def _joint_dtype(self) -> tf.DType:
    dtypes = set(self._dtypes)
    if self._shapes.num_unknown:
      return tf.uint8
    return dtypes.pop() if len(dtypes) == 1 else tf.uint8

  def pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The tensors as one."""
    if len(tensors) == 1:
      return tensors[0]
    flat = tf.constant([-1])
    parts = [self._flat(tensor, flat) for tensor in tensors]
    if self._shapes.num_unknown:
      parts.insert(0, _as_bytes(self._shapes.counts(tensors)))
    return tf.concat(parts, axis=0)

  def unpack(self, packed: tf.Tensor) -> list[tf.Tensor]:
    """What has been packed."""
    if len(self._dtypes) == 1:
      return [packed]
    counts = None
    if self._shapes.num_unknown:
      length = self._shapes.num_unknown * shapes.COUNT.size
      counts = _from_bytes(packed[:length], shapes.COUNT)
      packed = packed[length:]
    complete = self._shapes.complete(counts)
    pieces = tf.split(
      packed, [self._length(i, s) for i, s in enumerate(complete)]
    )
    return [
      self._restore(piece, i, shape)
      for i, (piece, shape) in enumerate(zip(pieces, complete, strict=True))
    ]

  def _flat(self, tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    flat = tensor if tensor.shape.rank == 1 else tf.reshape(tensor, shape)
    return flat if self._joint_dtype == tensor.dtype else _as_bytes(flat)

  def _length(self, index: int, shape: Sequence[Any]) -> Any:
    """Of a tensor's piece, in elements of the joint dtype."""
    dtype = self._dtypes[index]
    size = 1 if self._joint_dtype == dtype else dtype.size
    return shapes.num_elements(shape) * size

  def _restore(
    self, piece: tf.Tensor, index: int, shape: Sequence[Any]
  ) -> tf.Tensor:
    dtype = self._dtypes[index]
    if self._joint_dtype != dtype:
      piece = _from_bytes(piece, dtype)
    known = self._shapes.known[index]
    tensor = piece if len(known) == 1 else tf.reshape(piece, shape)
    tensor.set_shape(known)
    return tensor


def _as_bytes(flat: tf.Tensor) -> tf.Tensor:
  return tf.reshape(tf.bitcast(flat, tf.uint8), [-1])


def _from_bytes(piece: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  if dtype.size > 1:
    piece = tf.reshape(piece, [-1, dtype.size])
  return tf.bitcast(piece, dtype)
