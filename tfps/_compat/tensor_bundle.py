"""Rows of large tensors in a checkpoint's files, read piece by piece.

TensorFlow reads what a checkpoint stores as one tensor in one piece, even if
only some rows of it are asked for: ten rows of a table of 10 GB take 10 GB of
memory. So the place of its bytes is looked up in the index file, which is a
table in the format of LevelDB whose values are `BundleEntryProto`.
"""

from collections.abc import Iterator
import dataclasses
import math
import struct
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_UNCOMPRESSED = 0


@dataclasses.dataclass(frozen=True)
class _Part:
  """Consecutive rows of a tensor, which are stored together.

  Attributes:
    first: the first row.
    rows: number of rows.
    entry: where they are.
  """

  first: int
  rows: int
  entry: tensor_bundle_pb2.BundleEntryProto

  @property
  def end(self) -> int:
    return self.first + self.rows


class Reader:
  """Reader of the tensors of a checkpoint.

  Args:
    path: the prefix of its files.

  Raises:
    tf.errors.OpError: it does not exist or is damaged.
    ValueError: its index is damaged.
  """

  def __init__(self, path: str) -> None:
    self._path = path
    self._reader = tf.train.load_checkpoint(path)
    self.shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
    self.dtypes: dict[str, tf.DType] = self._reader.get_variable_to_dtype_map()
    self._index: dict[bytes, bytes] | None = None

  def slices(self, key: str, max_bytes: int) -> Iterator[tuple[int, Any]]:
    """Yields a tensor in pieces, each with the number of its first row.

    Large tensors are not compared with their checksums, which would take all of
    their bytes at once. What is not stored by rows comes in one piece.

    Args:
      key: the tensor's key; it has at least one axis.
      max_bytes: size of a piece, exceeded only by a single row.

    Raises:
      tf.errors.OpError: it cannot be read.
      ValueError: it is damaged.
    """
    shape, dtype = self.shapes[key], self.dtypes[key]
    row_bytes = math.prod(shape[1:]) * dtype.size
    is_large = shape[0] * row_bytes > max_bytes
    parts = self._parts(key) if is_large else None
    if parts is None:
      yield 0, self._reader.get_tensor(key)
      return
    count = max(1, max_bytes // row_bytes)
    for part in parts:
      for row in range(part.first, part.end, count):
        yield row, self._read(key, part, row, min(row + count, part.end))

  def rows(self, key: str, first: int, number: int) -> Any:
    """Returns consecutive rows of a tensor, as `slices` reads them.

    Args:
      key: the tensor's key; it has at least one axis.
      first: number of the first row.
      number: how many rows; fewer are returned at the tensor's end.

    Raises:
      tf.errors.OpError: they cannot be read.
      ValueError: the file is damaged.
    """
    end = min(first + number, self.shapes[key][0])
    parts = self._parts(key)
    if parts is None:
      return self._reader.get_tensor(key)[first:end]
    found = [
      self._read(key, part, max(first, part.first), min(end, part.end))
      for part in parts
      if max(first, part.first) < min(end, part.end)
    ]
    empty = np.empty([0, *self.shapes[key][1:]], self._numpy_type(key))
    return np.concatenate(found or [empty])

  def parts(self, key: str) -> list[str]:
    """Returns the parts that a tensor is stored in, as `RestoreV2` names them.

    A part is read, and compared with its checksum, without the others.

    Args:
      key: the tensor's key.

    Raises:
      ValueError: the index is damaged.
    """
    shape = self.shapes[key]
    parts = self._parts(key) if shape else None
    if parts is None or len(parts) == 1:
      return ['']
    sizes, rest = ' '.join(map(str, shape)), [':-'] * (len(shape) - 1)
    return [f'{sizes} {p.first},{p.rows}{"".join(rest)}' for p in parts]

  def get(self, key: str) -> Any:
    """Returns a whole tensor."""
    return self._reader.get_tensor(key)

  def _read(self, key: str, part: _Part, first: int, end: int) -> Any:
    """Returns rows of a part."""
    row_shape, kind = self.shapes[key][1:], self._numpy_type(key)
    row_bytes = math.prod(row_shape) * self.dtypes[key].size
    num_bytes = (end - first) * row_bytes
    with tf.io.gfile.GFile(self._file(part.entry.shard_id), 'rb') as file:
      file.seek(part.entry.offset + (first - part.first) * row_bytes)
      data = file.read(num_bytes)
    if len(data) != num_bytes:
      raise ValueError(f'{self._path}: {key} is cut off')
    return np.frombuffer(data, kind).reshape([end - first, *row_shape])

  def _numpy_type(self, key: str) -> Any:
    return self.dtypes[key].as_numpy_dtype

  def _parts(self, key: str) -> list[_Part] | None:
    """Returns where a tensor's rows are; None if it is stored otherwise."""
    if self._index is None:
      self._index = _read_table(f'{self._path}.index')
      header = tensor_bundle_pb2.BundleHeaderProto.FromString(self._index[b''])
      self._num_files = header.num_shards
    whole = _entry(self._index[key.encode()])
    shape = self.shapes[key]
    if whole.dtype == tf.string.as_datatype_enum:
      return None
    if not whole.slices:
      found = [_Part(0, shape[0], whole)]
    else:
      # Their keys encode name and extents so that they sort by first row.
      prefix = _ordered(key)
      stored = [
        _entry(value)
        for name, value in sorted(self._index.items())
        if name.startswith(prefix)
      ]
      if len(stored) != len(whole.slices):
        return None
      firsts = sorted(
        extents.extent[0].start if extents.extent else 0
        for extents in whole.slices
      )
      found = [
        _Part(first, entry.shape.dim[0].size, entry)
        for first, entry in zip(firsts, stored, strict=True)
      ]
    return found if _are_all_rows(found, shape) else None

  def _file(self, number: int) -> str:
    return f'{self._path}.data-{number:05d}-of-{self._num_files:05d}'


def _are_all_rows(parts: list[_Part], shape: list[int]) -> bool:
  row = 0
  for part in parts:
    if part.first != row or [d.size for d in part.entry.shape.dim[1:]] != [
      *shape[1:]
    ]:
      return False
    row += part.rows
  return row == shape[0]


def _entry(value: bytes) -> tensor_bundle_pb2.BundleEntryProto:
  return tensor_bundle_pb2.BundleEntryProto.FromString(value)


def _ordered(name: str) -> bytes:
  """Returns the beginning of the keys of a tensor's stored parts."""
  return b'\x00' + name.encode().replace(b'\x00', b'\x00\xff') + b'\x00\x01'


def _read_table(path: str) -> dict[bytes, bytes]:
  """Returns keys and values of a table file."""
  with tf.io.gfile.GFile(path, 'rb') as file:
    data = file.read()
  footer = data[-_FOOTER_BYTES:]
  (magic,) = struct.unpack('<Q', footer[-8:])
  if magic != _MAGIC:
    raise ValueError(f'{path} is damaged: it is no table of TensorFlow')
  _, _, position = _two_varints(footer, 0)
  offset, size, _ = _two_varints(footer, position)
  found: dict[bytes, bytes] = {}
  for _, handle in _block(path, data, offset, size):
    block_offset, block_size, _ = _two_varints(handle, 0)
    found.update(_block(path, data, block_offset, block_size))
  return found


def _block(
  path: str, data: bytes, offset: int, size: int
) -> Iterator[tuple[bytes, bytes]]:
  """Yields the entries of a block; keys are prefix-compressed."""
  if data[offset + size] != _UNCOMPRESSED:
    raise ValueError(f'{path} is damaged, or its table is compressed')
  block = data[offset : offset + size]
  (num_restarts,) = struct.unpack('<I', block[-4:])
  end, position, key = len(block) - 4 * (num_restarts + 1), 0, b''
  while position < end:
    shared, unshared, position = _two_varints(block, position)
    length, position = _varint(block, position)
    key = key[:shared] + block[position : position + unshared]
    position += unshared
    yield key, block[position : position + length]
    position += length


def _two_varints(data: bytes, position: int) -> tuple[int, int, int]:
  first, position = _varint(data, position)
  second, position = _varint(data, position)
  return first, second, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
  """Returns a number in base 128 and the position after it."""
  value = shift = 0
  while True:
    byte = data[position]
    position += 1
    value |= (byte & 0x7F) << shift
    shift += 7
    if byte < 0x80:
      return value, position
