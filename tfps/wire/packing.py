"""Packing of several tensors into one, for a single transfer."""

from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

from tfps.wire import shapes


class Packing:
  """The layout of tensors within one packed tensor.

  A single tensor is sent unchanged; tensors of one dtype are concatenated in
  that dtype; if there are several dtypes, those of each are concatenated, and
  the results as bytes. Numbers of rows that are not static are included, unless
  there is only one, which follows from the length.

  Args:
    tensors: the tensors to pack, of numeric dtypes; only their first dimension
      may be unknown.

  Raises:
    ValueError: another dimension is unknown.
  """

  def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
    self._dtypes = [tensor.dtype for tensor in tensors]
    self._shapes = shapes.Shapes(tensors, tells_length=True)
    self._by_dtype: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
      if None in tensor.shape.as_list()[1:]:
        raise ValueError(
          f'A tensor of shape {tensor.shape} cannot be packed: only the first '
          'dimension may be unknown.'
        )
      self._by_dtype.setdefault(tensor.dtype, []).append(i)

  @property
  def num_bytes(self) -> int | None:
    """The size of the packed tensor; None if it is not known statically."""
    if any(None in shape for shape in self._shapes.known):
      return None
    return sum(
      math.prod(shape) * dtype.size
      for shape, dtype in zip(self._shapes.known, self._dtypes, strict=True)
    )

  @property
  def _is_in_bytes(self) -> bool:
    return len(self._by_dtype) > 1 or self._shapes.num_sent > 0

  def pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the tensors as one."""
    if len(tensors) == 1:
      return tensors[0]
    flat = tf.constant([-1])
    joined = [
      _join([_flat(tensors[i], flat) for i in indices])
      for indices in self._by_dtype.values()
    ]
    if not self._is_in_bytes:
      return joined[0]
    if self._shapes.num_sent:
      joined.insert(0, self._shapes.counts(tensors))
    return _join([_as_bytes(each) for each in joined])

  def unpack(self, packed: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tensors of a packed tensor."""
    if len(self._dtypes) == 1:
      return [packed]
    counts = None
    if self._shapes.num_sent:
      length = self._shapes.num_sent * shapes.COUNT.size
      counts = _from_bytes(packed[:length], shapes.COUNT)
      packed = packed[length:]
    sizes = [
      self._shapes.sizes(indices, counts) for indices in self._by_dtype.values()
    ]
    joined = [packed]
    if self._is_in_bytes:
      lengths = [
        shapes.num_bytes(each, dtype)
        for each, dtype in zip(sizes, self._by_dtype, strict=True)
      ]
      joined = [
        _from_bytes(piece, dtype)
        for piece, dtype in zip(
          _split(packed, lengths, len(lengths)), self._by_dtype, strict=True
        )
      ]
    found: dict[int, tf.Tensor] = {}
    for piece, each, indices in zip(
      joined, sizes, self._by_dtype.values(), strict=True
    ):
      for i, flat in zip(
        indices, _split(piece, each, len(indices)), strict=True
      ):
        found[i] = self._shapes.restore(i, flat, counts)
    return [found[i] for i in range(len(found))]


def _flat(tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
  return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, shape)


def _join(flats: Sequence[tf.Tensor]) -> tf.Tensor:
  return flats[0] if len(flats) == 1 else tf.concat(flats, axis=0)


def _split(flat: tf.Tensor, sizes: Any, number: int) -> Sequence[tf.Tensor]:
  return [flat] if number == 1 else tf.split(flat, sizes)


def _as_bytes(flat: tf.Tensor) -> tf.Tensor:
  return tf.reshape(tf.bitcast(flat, tf.uint8), [-1])


def _from_bytes(piece: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  if dtype.size > 1:
    piece = tf.reshape(piece, [-1, dtype.size])
  return tf.bitcast(piece, dtype)
