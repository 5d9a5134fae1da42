"""Canaries for what `tfps._compat.tensor_bundle` knows of checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import tensor_bundle

_BYTES = 40


def _joined(reader, key):
  pieces = list(reader.slices(key, _BYTES))
  firsts = np.cumsum([0, *(len(values) for _, values in pieces)])
  assert [first for first, _ in pieces] == list(firsts[:-1])
  return len(pieces), np.concatenate([values for _, values in pieces])


def _save(path, key, value, shards):
  first, specs, parts = 0, [], []
  for part in np.array_split(value, shards):
    sizes = ' '.join(map(str, value.shape))
    rest = ''.join([':-'] * (value.ndim - 1))
    specs.append(f'{sizes} {first},{len(part)}{rest}')
    parts.append(tf.constant(part))
    first += len(part)
  tf.raw_ops.SaveV2(
    prefix=path,
    tensor_names=[key] * shards,
    shape_and_slices=specs if shards > 1 else [''],
    tensors=parts,
  )


@pytest.mark.parametrize(
  ('damage', 'complaint'),
  [
    (lambda data: data[:-1] + b'x', 'it is no table'),
    # The type of the last block, with its checksum and the footer behind it.
    (lambda data: data[:-53] + b'1' + data[-52:], 'its table is compressed'),
  ],
)
def test_an_index_that_changes_meanwhile_is_told(tmp_path, damage, complaint):
  path = str(tmp_path / 'saved')
  _save(path, 'a', np.zeros([9, 3], 'f'), 1)
  reader = tensor_bundle.Reader(path)
  index = tmp_path / 'saved.index'
  index.write_bytes(damage(index.read_bytes()))
  with pytest.raises(ValueError, match=f'saved.index is .*{complaint}'):
    reader.rows('a', 0, 1)


@pytest.mark.parametrize('shards', [1, 3, 7])
@pytest.mark.parametrize(
  ('shape', 'dtype'),
  [((300, 3), 'f'), ((9, 2, 2), 'f8'), ((1000,), 'i4'), ((70, 1), 'f2')],
)
def test_rows_are_those_of_tensorflow(tmp_path, shape, dtype, shards):
  value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
  path = str(tmp_path / 'saved')
  _save(path, 'a/b', value, shards)
  reader = tensor_bundle.Reader(path)
  count, found = _joined(reader, 'a/b')
  np.testing.assert_array_equal(found, value)
  assert found.dtype == value.dtype
  assert count >= value.nbytes // _BYTES


def test_checkpoints_of_several_files_are_read(tmp_path):
  """Names that begin with each other stay apart, also in a long index."""
  paths, values = [], {}
  for i in range(2):
    value = np.full([20 + i, 3], i, 'f')
    paths.append(str(tmp_path / f'part{i}'))
    key = 'a' * (1 + i) + '/x'
    _save(paths[-1], key, value, 2)
    values[key] = value
  names = [f'many/{i}' for i in range(2000)]
  paths.append(str(tmp_path / 'part2'))
  tf.raw_ops.SaveV2(
    prefix=paths[-1],
    tensor_names=names,
    shape_and_slices=[''] * len(names),
    tensors=[tf.fill([30], float(i)) for i in range(len(names))],
  )
  path = str(tmp_path / 'merged')
  tf.raw_ops.MergeV2Checkpoints(
    checkpoint_prefixes=paths, destination_prefix=path, delete_old_dirs=False
  )
  reader = tensor_bundle.Reader(path)
  for key, value in values.items():
    np.testing.assert_array_equal(_joined(reader, key)[1], value)
  for i in (0, 999, 1999):
    np.testing.assert_array_equal(_joined(reader, names[i])[1], [i] * 30)


def test_what_is_not_in_rows_comes_whole(tmp_path):
  path = str(tmp_path / 'saved')
  tf.raw_ops.SaveV2(
    prefix=path,
    tensor_names=['words', 'columns', 'columns'],
    shape_and_slices=['', '20 4 -:0,2', '20 4 -:2,2'],
    tensors=[tf.fill([50], 'word'), tf.zeros([20, 2]), tf.ones([20, 2])],
  )
  reader = tensor_bundle.Reader(path)
  assert _joined(reader, 'words')[0] == 1
  count, found = _joined(reader, 'columns')
  assert count == 1
  np.testing.assert_array_equal(found[0], [0, 0, 1, 1])


def test_a_file_that_is_cut_off_is_told(tmp_path):
  path = str(tmp_path / 'saved')
  _save(path, 'x', np.zeros([100, 4], 'f'), 1)
  reader = tensor_bundle.Reader(path)
  data = tmp_path / 'saved.data-00000-of-00001'
  data.write_bytes(data.read_bytes()[:100])
  with pytest.raises(ValueError, match='x is cut off'):
    list(reader.slices('x', _BYTES))


@pytest.mark.parametrize('shards', [1, 3])
@pytest.mark.parametrize('shape', [(30, 3), (30,)])
def test_some_rows_are_read_without_the_others(tmp_path, shape, shards):
  value = np.arange(np.prod(shape)).reshape(shape).astype('i8')
  path = str(tmp_path / 'saved')
  _save(path, 'x', value, shards)
  reader = tensor_bundle.Reader(path)
  for first, number in ((0, 30), (8, 5), (3, 20), (25, 10), (30, 1)):
    found = reader.rows('x', first, number)
    np.testing.assert_array_equal(found, value[first : first + number])
    assert found.dtype == value.dtype


@pytest.mark.parametrize('shards', [1, 3])
def test_parts_are_read_by_tensorflow_and_are_all_there_is(tmp_path, shards):
  value = np.arange(90, dtype='f').reshape(30, 3)
  path = str(tmp_path / 'saved')
  _save(path, 'x', value, shards)
  parts = tensor_bundle.Reader(path).parts('x')
  found = [
    tf.raw_ops.RestoreV2(
      prefix=path,
      tensor_names=['x'],
      shape_and_slices=[part],
      dtypes=[tf.float32],
    )[0]
    for part in parts
  ]
  assert len(found) == shards
  np.testing.assert_array_equal(tf.concat(found, axis=0), value)


def test_a_scalar_and_strings_are_one_part(tmp_path):
  path = str(tmp_path / 'saved')
  tf.raw_ops.SaveV2(
    prefix=path,
    tensor_names=['one', 'words'],
    shape_and_slices=['', ''],
    tensors=[tf.constant(1), tf.fill([50], 'word')],
  )
  reader = tensor_bundle.Reader(path)
  assert reader.parts('one') == reader.parts('words') == ['']
