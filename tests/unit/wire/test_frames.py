"""Tensors in one."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import row_counts
from tfps.wire import packing

_DTYPES = ['float32', 'float64', 'float16', 'int8', 'uint8', 'int32', 'int64']


def _array(draw_shape, dtype):
  return (
    (np.arange(np.prod(draw_shape)) % 100).reshape(draw_shape).astype(dtype)
  )


_ARRAYS = st.lists(
  st.builds(
    _array,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(_DTYPES),
  ),
  min_size=1,
  max_size=5,
)


@hypothesis.given(_ARRAYS)
@hypothesis.settings(deadline=None, max_examples=60)
def test_what_was_packed_is_unpacked(arrays):
  tensors = [tf.constant(array) for array in arrays]
  frame = packing.Packing(tensors)
  packed = frame.pack(tensors)
  assert frame.num_bytes == tf.size(packed) * packed.dtype.size
  for array, tensor in zip(arrays, frame.unpack(packed), strict=True):
    np.testing.assert_array_equal(array, tensor.numpy())
    assert array.dtype == tensor.dtype.as_numpy_dtype


@pytest.mark.parametrize('rows', [0, 1, 5])
def test_numbers_of_rows_go_along(rows):
  specs = [
    tf.TensorSpec([None, 3]),
    tf.TensorSpec([2], tf.int64),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None, 0]),
    tf.TensorSpec([]),
  ]

  @tf.function(input_signature=specs)
  def there_and_back(*tensors):
    frame = packing.Packing(tensors)
    assert frame.num_bytes is None
    unpacked = frame.unpack(frame.pack(tensors))
    assert [t.shape for t in unpacked] == [spec.shape for spec in specs]
    return unpacked

  arrays = [
    np.ones([rows, 3], 'f'),
    np.array([7, 1 << 40]),
    np.arange(rows, dtype='i4'),
    np.ones([rows, 0], 'f'),
    np.float32(2.5),
  ]
  for array, tensor in zip(arrays, there_and_back(*arrays), strict=True):
    np.testing.assert_array_equal(array, tensor.numpy())


_ROWS, _OTHER = tf.TensorSpec([None, 3]), tf.TensorSpec([2], tf.int64)


@pytest.mark.parametrize('rows', [0, 1, 5])
@pytest.mark.parametrize(
  ('specs', 'num_other_bytes'),
  [
    ([tf.TensorSpec([4]), _ROWS, tf.TensorSpec([])], 20),
    ([tf.TensorSpec([4]), _ROWS, _OTHER], 32),
    ([_OTHER, _ROWS], 16),
    ([tf.TensorSpec([None, 0]), _OTHER], 8 + 16),  # with the number
    ([_ROWS, tf.TensorSpec([None], tf.int32)], 2 * 8),  # with both numbers
  ],
  ids=['one dtype', 'two dtypes', 'at the end', 'no elements', 'two unknown'],
)
def test_the_only_number_of_rows_follows_from_the_length(
  specs, num_other_bytes, rows
):
  @tf.function(input_signature=specs)
  def there_and_back(*tensors):
    frame = packing.Packing(tensors)
    packed = frame.pack(tensors)
    unpacked = frame.unpack(packed)
    assert [t.shape for t in unpacked] == [spec.shape for spec in specs]
    return unpacked, tf.size(packed) * packed.dtype.size

  arrays = [
    _array([rows if n is None else n for n in spec.shape], spec.dtype.name)
    for spec in specs
  ]
  unpacked, num_bytes = there_and_back(*arrays)
  for array, tensor in zip(arrays, unpacked, strict=True):
    np.testing.assert_array_equal(array, tensor.numpy())
  unknown = [a for a, s in zip(arrays, specs, strict=True) if None in s.shape]
  assert num_bytes == sum(a.nbytes for a in unknown) + num_other_bytes


@pytest.mark.parametrize(('width', 'num_copies'), [(8, 2), (1024, 1)])
def test_large_alike_tensors_are_copied_once(width, num_copies):
  specs = [tf.TensorSpec([4, width])] * 3 + [tf.TensorSpec([5])]

  @tf.function(input_signature=specs)
  def pack(*tensors):
    return packing.Packing(tensors).pack(tensors)

  graph = pack.get_concrete_function().graph
  copies = [op for op in graph.get_operations() if op.type == 'ConcatV2']
  assert len(copies) == num_copies


def test_more_than_one_unknown_dimension_is_refused():
  @tf.function(input_signature=[tf.TensorSpec([None, None])])
  def pack(tensor):
    return packing.Packing([tensor]).pack([tensor])

  with pytest.raises(ValueError, match='only the first dimension'):
    pack(tf.zeros([2, 2]))


@dataclasses.dataclass(frozen=True)
class _Part:
  """A tensor, and how its number of rows becomes known.

  Attributes:
    rows: how many rows it has.
    row: shape of a row.
    dtype: dtype.
    known: 'static', 'noted' at the sender, 'told' to the receiver, or 'sent'.
  """

  rows: int
  row: tuple[int, ...]
  dtype: str
  known: str

  @property
  def array(self):
    return _array((self.rows, *self.row), self.dtype)

  @property
  def spec(self):
    rows = self.rows if self.known == 'static' else None
    return tf.TensorSpec([rows, *self.row], self.dtype)


_PARTS = st.lists(
  st.builds(
    _Part,
    st.integers(0, 4),
    st.sampled_from([(), (3,), (2, 2), (0,)]),
    st.sampled_from(['float32', 'int64']),
    st.sampled_from(['static', 'noted', 'told', 'sent']),
  ),
  min_size=1,
  max_size=7,
)


@hypothesis.given(_PARTS)
@hypothesis.settings(deadline=None, max_examples=25)
def test_numbers_of_rows_are_found_however_they_are_known(parts):
  sizes = []

  @tf.function(input_signature=[part.spec for part in parts])
  def there_and_back(*tensors):
    told = {}
    for i, (part, tensor) in enumerate(zip(parts, tensors, strict=True)):
      number = tf.constant(part.rows, tf.int64)
      if part.known == 'noted':
        row_counts.note(tensor, number)
      if part.known == 'told':
        told[i] = number
    frame = packing.Packing(tensors, told)
    packed = frame.pack(tensors)
    sizes.append(frame.num_bytes)
    return tf.size(packed) * packed.dtype.size, frame.unpack(packed)

  arrays = [part.array for part in parts]
  num_bytes, unpacked = there_and_back(*arrays)
  for array, tensor in zip(arrays, unpacked, strict=True):
    np.testing.assert_array_equal(array, tensor.numpy())
  num_sent = sum(part.known in ('noted', 'sent') for part in parts)
  assert num_bytes <= sum(array.nbytes for array in arrays) + 8 * num_sent
  assert sizes[-1] in (None, num_bytes.numpy())
