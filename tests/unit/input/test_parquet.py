"""Parquet files, read by row groups with pyarrow."""

import datetime
import sys

import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

import tfps

_UTC = datetime.timezone.utc


def write(path, columns, **kwargs):
  parquet.write_table(pa.table(columns), path, **kwargs)
  return str(path)


def values_of(tensor):
  """The values of a tensor as lists, ragged or not."""
  is_ragged = isinstance(tensor, tf.RaggedTensor)
  return tensor.to_list() if is_ragged else tensor.numpy().tolist()


@pytest.fixture
def one(tmp_path):
  """Writes one column to a file, whose batches the result lists."""

  def read(values, type_, **kwargs):
    path = write(tmp_path / 'one.parquet', {'x': pa.array(values, type_)})
    found = tfps.input.Parquet(path, **{'batch_size': 2, **kwargs}).dataset()
    return [element['x'] for element in found]

  return read


@pytest.fixture
def numbers(tmp_path):
  """Numbers from 0 to 16 in two files, of row groups of at most 5 rows."""
  write(
    tmp_path / 'a.parquet', {'n': range(7), 'y': range(7)}, row_group_size=5
  )
  write(
    tmp_path / 'b.parquet',
    {'n': range(7, 17), 'y': range(7, 17)},
    row_group_size=5,
  )
  return tmp_path / '*.parquet'


@pytest.mark.parametrize(
  ('values', 'type_', 'dtype', 'expected'),
  [
    ([1, -2, 3], pa.int8(), tf.int8, [1, -2, 3]),
    ([1, 2**40], pa.int64(), tf.int64, [1, 2**40]),
    ([1, 2**16 - 1], pa.uint16(), tf.uint16, [1, 2**16 - 1]),
    (np.array([0.5], np.float16), pa.float16(), tf.float16, [0.5]),
    ([0.5, 1.5], pa.float32(), tf.float32, [0.5, 1.5]),
    ([0.1], pa.float64(), tf.float64, [0.1]),
    ([True, False, True], pa.bool_(), tf.bool, [True, False, True]),
    (['é', ''], pa.string(), tf.string, ['é'.encode(), b'']),
    (['a', 'b'], pa.large_string(), tf.string, [b'a', b'b']),
    (['a', 'é'], pa.string_view(), tf.string, [b'a', 'é'.encode()]),
    ([b'\xff\0'], pa.binary(), tf.string, [b'\xff\0']),
    (['a', 'b', 'a'], pa.dictionary(pa.int8(), pa.string()), tf.string,
     [b'a', b'b', b'a']),
    ([datetime.datetime(1970, 1, 2)], pa.timestamp('ms'), tf.int64,
     [86_400_000_000]),
    ([1_999], pa.timestamp('ns'), tf.int64, [1]),
    ([datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=_UTC)],
     pa.timestamp('us', 'Europe/Paris'), tf.int64, [1_000_000]),
    ([datetime.date(1970, 1, 3)], pa.date32(), tf.int64, [172_800_000_000]),
  ],
  ids=lambda value: str(value) if isinstance(value, pa.DataType) else '',
)  # fmt: skip
def test_types_of_columns(one, values, type_, dtype, expected):
  batches = one(values, type_)
  assert {batch.dtype for batch in batches} == {dtype}
  assert [value for batch in batches for value in values_of(batch)] == expected


@pytest.mark.parametrize(
  ('type_', 'dtype'),
  [
    (pa.list_(pa.int32()), tf.int32),
    (pa.large_list(pa.int64()), tf.int64),
    (pa.list_(pa.timestamp('s')), tf.int64),
  ],
  ids=str,
)
def test_columns_of_lists_are_ragged(one, type_, dtype):
  first, second = one([[1, 2], [], [3]], type_)
  assert isinstance(first, tf.RaggedTensor)
  assert (first.dtype, first.row_splits.dtype) == (dtype, tf.int64)
  scale = 1_000_000 if pa.types.is_timestamp(type_.value_type) else 1
  assert first.to_list() == [[scale, 2 * scale], []]
  assert second.to_list() == [[3 * scale]]


def test_lists_of_strings_may_all_be_empty(one):
  (batch,) = one([[], []], pa.list_(pa.string()))
  assert batch.dtype == tf.string
  assert batch.to_list() == [[], []]


def test_lists_of_a_fixed_size_are_ragged(one):
  (batch,) = one([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))
  assert batch.to_list() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
  ('values', 'type_', 'fill', 'expected'),
  [
    ([1, None], pa.int64(), -1, [1, -1]),
    ([None, 0.5], pa.float32(), 0, [0, 0.5]),
    ([None, True], pa.bool_(), False, [False, True]),
    ([None, 'a'], pa.string(), '?', [b'?', b'a']),
    ([None, 1], pa.timestamp('us'), 0, [0, 1]),
    ([[1, None], None], pa.list_(pa.int64()), 7, [[1, 7], []]),
  ],
  ids=['int', 'float', 'bool', 'string', 'timestamp', 'list'],
)
def test_nulls_are_filled(one, values, type_, fill, expected):
  (batch,) = one(values, type_, fill={'x': fill})
  assert values_of(batch) == expected


@pytest.mark.parametrize(
  ('values', 'type_', 'complaint'),
  [
    ([1, None, None], pa.int64(), "the column 'x' is null in 2 of 3 rows"),
    ([[1], None, [2]], pa.list_(pa.int64()), "'x' is null in 1 of 3 rows"),
    (
      [[1], [None]],
      pa.list_(pa.int64()),
      "'x' is null in 1 of 2 values of its l",
    ),
  ],
  ids=['values', 'a list', 'in a list'],
)
def test_a_null_is_told_with_its_row_group(one, values, type_, complaint):
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=rf"one\.parquet, row group 0: .*{complaint}.*fill=\{{'x': ",
  ):
    one(values, type_)


@pytest.mark.parametrize(
  ('column', 'complaint'),
  [
    ({'x': [1, 2]}, 'has 2 rows, and had 1 when the file was listed'),
    ({'y': [1]}, 'has 1 row groups and the columns y, which is not how it'),
  ],
)
def test_a_file_that_is_changed_meanwhile_is_told(tmp_path, column, complaint):
  path = write(tmp_path / 'one.parquet', {'x': [1]})
  dataset = tfps.input.Parquet(path).dataset()
  write(path, column)
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=rf'one\.parquet, row group 0: .*{complaint}.* Do not change files',
  ):
    list(dataset)


def test_batches_are_those_of_row_groups(numbers):
  found = tfps.input.Parquet(numbers, columns='n', batch_size=4)
  batches = [values_of(element['n']) for element in found.dataset()]
  assert (len(found), found.num_rows) == (4, 17)
  assert batches == [
    [0, 1, 2, 3], [4], [5, 6],
    [7, 8, 9, 10], [11], [12, 13, 14, 15], [16],
  ]  # fmt: skip
  assert found.name(1).endswith('a.parquet, row group 1')


def test_a_split_is_a_row_group(numbers):
  found = tfps.input.Parquet(numbers, columns='n', batch_size=8)
  (element,) = found.read(tf.constant(2, tf.int64))
  assert values_of(element['n']) == [7, 8, 9, 10, 11]


def test_rows_come_singly_without_a_batch_size(tmp_path):
  path = write(tmp_path / 'x', {'n': [1, 2], 'l': [[1], [2, 3]]})
  rows = tfps.input.Parquet(path).dataset()
  assert [values_of(row['l']) for row in rows] == [[1], [2, 3]]
  (batch,) = rows.batch(2)
  assert values_of(batch['n']) == [1, 2]
  assert values_of(batch['l']) == [[1], [2, 3]]


def test_no_label_is_none(tmp_path):
  path = write(tmp_path / 'x', {'n': [1]})
  (row,) = tfps.input.Parquet(path, label=[]).dataset()
  assert values_of(row['n']) == 1


@pytest.mark.parametrize(
  ('label', 'expected'),
  [('y', 1), (['y'], {'y': 1}), (['n', 'y'], {'n': 1, 'y': 1})],
  ids=['one', 'a list of one', 'two'],
)
def test_labels_come_beside_the_features(tmp_path, label, expected):
  path = write(tmp_path / 'x', {'n': [1], 'y': [1], 'z': [3]})
  ((features, found),) = tfps.input.Parquet(path, label=label).dataset()
  assert set(features) == {'n', 'y', 'z'} - set(label)
  assert tf.nest.map_structure(values_of, found) == expected


def test_a_seed_changes_the_order_of_row_groups_each_time(numbers):
  found = tfps.input.Parquet(numbers, columns='n', batch_size=5)
  dataset = found.dataset(shuffle_seed=3)
  orders = [[values_of(x['n'])[0] for x in dataset] for _ in range(5)]
  assert {tuple(sorted(order)) for order in orders} == {(0, 5, 7, 12)}
  assert len(set(map(tuple, orders))) > 1


def test_a_fixed_share_is_each_workers_own(numbers):
  found = tfps.input.Parquet(numbers, columns='n', batch_size=5)
  shares = [
    [
      number
      for element in found.dataset(tf.distribute.InputContext(3, i))
      for number in values_of(element['n'])
    ]
    for i in range(3)
  ]
  assert shares == [[*range(5), *range(12, 17)], [5, 6], [*range(7, 12)]]


def test_other_row_groups_have_another_fingerprint(tmp_path):
  sizes = {'b/day=1/a': 5, 'c/b/day=1/a': 5, 'b/day=2/a': 5, 'd/b/day=1/a': 4}
  found = []
  for place, size in sizes.items():
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    write(path, {'n': range(9)}, row_group_size=size)
    found.append(tfps.input.Parquet(path).fingerprint())
  first, moved, day, other = found
  assert first == moved
  assert len({first, day, other}) == 3


def test_where_batches_are_counted_their_size_counts(numbers):
  one, other = (tfps.input.Parquet(numbers, batch_size=n) for n in (4, 5))
  assert one.fingerprint() == other.fingerprint()
  assert one.fingerprint(with_batches=True) != other.fingerprint(
    with_batches=True
  )


def test_a_uri_of_a_file_is_read(numbers):
  found = tfps.input.Parquet(f'file://{numbers}', columns='n')
  assert [int(row['n']) for row in found.dataset()] == list(range(17))


def _cut(folder):
  path = folder / 'cut.parquet'
  write(path, {'n': range(1000)})
  path.write_bytes(path.read_bytes()[:-100])
  return path


def _text(folder):
  path = folder / 'text.parquet'
  path.write_text('n\n1\n')
  return path


_NUMBERS = {'n': [1], 'y': [1.0]}


def _as(first, *others):
  """Makes files of these columns; returns their paths."""

  def make(folder):
    return [
      write(folder / f'{i}.parquet', columns)
      for i, columns in enumerate((first, *others))
    ]

  return make


@pytest.mark.parametrize(
  ('make', 'kwargs', 'complaint'),
  [
    (lambda folder: folder / '*.none', {}, "paths: nothing matches '.*none'"),
    (lambda folder: folder / 'none', {}, 'none: there is no such file'),
    (
      lambda folder: folder,
      {},
      'paths: the folder .* has no files',
    ),
    (
      lambda folder: 'nosuch://bucket/file',
      {},
      'nosuch://bucket/file: is of no file system that pyarrow knows .*Give a',
    ),
    (lambda folder: [], {}, r'paths=\[\]: give one file or more'),
    (_text, {}, 'text.parquet: is not a Parquet file, or was cut short'),
    (_cut, {}, 'cut.parquet: is not a Parquet file, or was cut short'),
    (_as({'n': pa.array([], pa.int64())}), {}, 'have no rows to read'),
    (
      _as(_NUMBERS),
      {'columns': ['z']},
      "0.parquet: has no columns 'z', but n, y. Correct columns=",
    ),
    (_as(_NUMBERS), {'label': 'z'}, "0.parquet: has no columns 'z', but n, y"),
    (_as(_NUMBERS), {'columns': []}, r'columns=\[\]: give one name or more'),
    (
      _as(_NUMBERS),
      {'columns': ['n', 'y'], 'label': 'y'},
      "'y' is given more than once",
    ),
    (_as(_NUMBERS, {'y': [1.0]}), {}, "1.parquet: has no columns 'n', but y"),
    (
      _as(_NUMBERS, {'n': [1.0], 'y': [1.0]}),
      {},
      "1.parquet: the column 'n' has float64 values, but in .*0.parquet it has "
      'int64 values. Write all files with one type',
    ),
    (
      _as(_NUMBERS, {'n': [[1]], 'y': [1.0]}),
      {},
      "1.parquet: the column 'n' has lists of int64 values, but in ",
    ),
    (
      _as({'s': [{'a': 1}]}),
      {},
      "0.parquet: the column 's' has the type struct<a: int64>, which cannot "
      'be read. Supported are integers',
    ),
    (
      _as({'s': [[[1]]]}),
      {},
      "the column 's' has the type list<.*list<.*cannot be read",
    ),
    (_as(_NUMBERS), {'batch_size': 0}, 'batch_size=0 must be 1 or more'),
    (_as(_NUMBERS), {'batch_size': 2.5}, 'batch_size=2.5 must be 1 or more'),
    (_as(_NUMBERS), {'fill': {'z': 0}}, "fill: 'z' is none of the columns"),
    (
      _as(_NUMBERS),
      {'fill': {'n': 'none'}},
      "fill={'n': 'none'}: is not a value of a column of int64s",
    ),
    (
      _as(_NUMBERS),
      {'fill': {'n': True}},
      "fill={'n': True}: is not a value of a column of int64s",
    ),
    (
      _as(_NUMBERS),
      {'fill': {'n': 1.5}},
      r"fill={'n': 1.5}: is not a value of .* int64s \(it would be 1\)",
    ),
  ],
  ids=[
    'no match',
    'no file',
    'a folder',
    'no known file system',
    'no path',
    'text',
    'cut short',
    'no rows',
    'no such column',
    'no such label',
    'no column',
    'a feature that is the label',
    'a column that another file lacks',
    'another type',
    'lists',
    'struct',
    'lists of lists',
    'empty batches',
    'half a row',
    'fill of no column',
    'fill of another type',
    'fill of ints by a bool',
    'fill of ints by a fraction',
  ],
)
def test_bad_input_is_told(tmp_path, make, kwargs, complaint):
  paths = make(tmp_path)
  with pytest.raises(ValueError, match=complaint):
    tfps.input.Parquet(paths, **kwargs)


def test_more_workers_than_row_groups_are_told(numbers):
  found = tfps.input.Parquet(numbers)
  with pytest.raises(
    ValueError, match='4 row groups cannot be shared out to 5'
  ):
    found.dataset(tf.distribute.InputContext(5, 0))


@pytest.mark.parametrize(
  ('changed', 'complaint'),
  [
    ({'n': range(6)}, 'has 6 rows, and had 7 when the file was listed'),
    ({'m': range(7)}, 'has 1 row groups and the columns m, which is not how'),
  ],
  ids=['rows', 'columns'],
)
def test_a_file_that_has_changed_is_told(tmp_path, changed, complaint):
  path = write(tmp_path / 'x', {'n': range(7)})
  found = tfps.input.Parquet(path).dataset()
  write(path, changed)
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=f'x, row group 0: .*{complaint}'
  ):
    list(found)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
  path = write(tmp_path / 'x', {'n': range(7)})
  monkeypatch.setitem(sys.modules, 'pyarrow.parquet', None)
  with pytest.raises(ImportError, match=r"pip install 'tfps\[parquet\]'"):
    tfps.input.Parquet(path)
