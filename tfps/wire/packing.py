"""Packing of several tensors into one, for a single transfer."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

from tfps.wire import chunking
from tfps.wire import shapes

# Alike tensors are joined before they are reshaped unless one has more bytes:
# then the copy that this makes takes longer than to reshape each.
_MAX_BYTES_TO_JOIN = 1 << 12

# Indices of tensors of one dtype whose rows have the same shape.
_Block = list[int]


class Packing:
  """The layout of tensors within one packed tensor.

  A single tensor is sent unchanged; tensors of one dtype are concatenated in
  that dtype; if there are several dtypes, those of each are concatenated, and
  the results as bytes. Numbers of rows that are not static are included, unless
  the receiver knows them, or there is only one, which follows from the length.

  Tensors whose rows have the same shape are next to each other, so that they
  are reshaped together.

  Args:
    tensors: the tensors to pack, of numeric dtypes; only their first dimension
      may be unknown.
    told: numbers of rows that the receiver knows, int64 scalars there, by index
      of the tensor.

  Raises:
    ValueError: another dimension is unknown.
  """

  def __init__(
    self,
    tensors: Sequence[tf.Tensor],
    told: Mapping[int, tf.Tensor] | None = None,
  ) -> None:
    self._dtypes = [tensor.dtype for tensor in tensors]
    self._shapes = shapes.Shapes(tensors, tells_length=True, told=told)
    self._blocks: dict[tf.DType, list[_Block]] = {}
    for i, tensor in enumerate(tensors):
      if None in tensor.shape.as_list()[1:]:
        raise ValueError(
          f'A tensor of shape {tensor.shape} cannot be packed: only the first '
          'dimension may be unknown.'
        )
      self._add(i, tensor.dtype)

  def _add(self, index: int, dtype: tf.DType) -> None:
    blocks = self._blocks.setdefault(dtype, [])
    known = self._shapes.known
    row = known[index][1:]
    # A scalar has no rows, and rows of no elements cannot be told apart.
    if known[index] and 0 not in row:
      for block in blocks:
        first = known[block[0]]
        if first and first[1:] == row:
          block.append(index)
          return
    blocks.append([index])

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
    return len(self._blocks) > 1 or self._shapes.num_sent > 0

  def pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the tensors as one."""
    if len(tensors) == 1:
      return tensors[0]
    flat = tf.constant([-1])
    joined = [
      _join(
        [
          _flat(piece, flat)
          for block in blocks
          for piece in self._pieces(block, tensors)
        ]
      )
      for blocks in self._blocks.values()
    ]
    if not self._is_in_bytes:
      return joined[0]
    if self._shapes.num_sent:
      joined.insert(0, self._shapes.counts(tensors))
    return _join([_as_bytes(each) for each in joined])

  def _pieces(
    self, block: _Block, tensors: Sequence[tf.Tensor]
  ) -> list[tf.Tensor]:
    """Returns the tensors of a block, joined unless they are large."""
    pieces = [tensors[i] for i in block]
    largest = max(chunking.num_bytes(piece) or 0 for piece in pieces)
    return pieces if largest > _MAX_BYTES_TO_JOIN else [_join(pieces)]

  def unpack(self, packed: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tensors of a packed tensor."""
    if len(self._dtypes) == 1:
      return [packed]
    sent = None
    if self._shapes.num_sent:
      length = self._shapes.num_sent * shapes.COUNT.size
      sent = _from_bytes(packed[:length], shapes.COUNT)
      packed = packed[length:]
    counts = self._shapes.received(sent)
    sizes = [
      self._shapes.sizes(blocks, counts) for blocks in self._blocks.values()
    ]
    joined = [packed]
    if self._is_in_bytes:
      lengths = [
        shapes.num_bytes(each, dtype)
        for each, dtype in zip(sizes, self._blocks, strict=True)
      ]
      joined = [
        _from_bytes(piece, dtype)
        for piece, dtype in zip(
          _split(packed, lengths, len(lengths)), self._blocks, strict=True
        )
      ]
    found: dict[int, tf.Tensor] = {}
    for piece, each, blocks in zip(
      joined, sizes, self._blocks.values(), strict=True
    ):
      for block, flat in zip(
        blocks, _split(piece, each, len(blocks)), strict=True
      ):
        found.update(self._unblocked(block, flat, counts))
    return [found[i] for i in range(len(found))]

  def _unblocked(
    self, block: _Block, flat: tf.Tensor, counts: tf.Tensor | None
  ) -> Iterator[tuple[int, tf.Tensor]]:
    """Yields the tensors of a block with their indices."""
    rows = self._shapes.restore(block, flat, counts)
    if len(block) == 1:
      yield block[0], rows
      return
    pieces = _split(rows, self._shapes.rows(block, counts), len(block))
    for i, tensor in zip(block, pieces, strict=True):
      tensor.set_shape(self._shapes.known[i])
      yield i, tensor


def _flat(tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
  return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, shape)


def _join(flats: Sequence[tf.Tensor]) -> tf.Tensor:
  return flats[0] if len(flats) == 1 else tf.concat(flats, axis=0)


def _split(flat: tf.Tensor, sizes: Any, number: int) -> Sequence[tf.Tensor]:
  return [flat] if number == 1 else tf.split(flat, sizes, num=number)


def _as_bytes(flat: tf.Tensor) -> tf.Tensor:
  return tf.reshape(tf.bitcast(flat, tf.uint8), [-1])


def _from_bytes(piece: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  if dtype.size > 1:
    piece = tf.reshape(piece, [-1, dtype.size])
  return tf.bitcast(piece, dtype)
