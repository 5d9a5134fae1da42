"""Folders of Parquet files, as Spark and Hive write them."""

import pytest
import tensorflow as tf

from tests.unit.input.test_parquet import values_of
from tests.unit.input.test_parquet import write
import tfps


def _spread(folder, values, **columns):
  """Writes a file into a folder of each value, as Spark does."""
  for i, (name, value) in enumerate(values):
    place = folder / f'{name}={value}'
    place.mkdir(parents=True, exist_ok=True)
    write(place / f'part-{i}.parquet', {'n': [2 * i, 2 * i + 1], **columns})
  (folder / '_SUCCESS').touch()
  (folder / '_temporary' / 'day=9').mkdir(parents=True)
  (folder / '_temporary' / 'day=9' / 'part-0.parquet').touch()
  (folder / '.part-0.parquet.crc').touch()
  return folder


def _rows_of(paths, **kwargs):
  rows = tfps.input.Parquet(paths, **{'batch_size': 2, **kwargs})
  return [
    {name: values_of(value) for name, value in batch.items()}
    for batch in rows.dataset()
  ]


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    (['2', '-1', '07'], [7, -1, 2]),  # in the order of the folders' names
    (['2', 'b', 'a%2Fb%3Dc'], [b'2', b'a/b=c', b'b']),
    (['1', str(2**63), '2'], [b'1', b'2', str(2**63).encode()]),
    (['2026-01-02', '1', '2'], [b'1', b'2', b'2026-01-02']),
  ],
  ids=['integers', 'encoded', 'large', 'strings'],
)
def test_a_folder_has_its_files_and_partitions(tmp_path, values, expected):
  folder = _spread(tmp_path / 'days', [('day', value) for value in values])
  order = sorted(range(3), key=lambda i: f'day={values[i]}')
  found = _rows_of(folder)
  assert [row['n'] for row in found] == [[2 * i, 2 * i + 1] for i in order]
  by_value = sorted(found, key=lambda row: row['day'][0])
  assert [row['day'] for row in by_value] == [[v] * 2 for v in sorted(expected)]


def test_partitions_may_be_labels_and_features_alone(tmp_path):
  _spread(tmp_path / 'days' / 'year=1', [('day', '1'), ('day', '2')])
  rows = tfps.input.Parquet(
    tmp_path / 'days', columns=['year'], label='day', batch_size=2
  )
  found = [(values_of(x['year']), values_of(y)) for x, y in rows.dataset()]
  assert found == [([1, 1], [1, 1]), ([1, 1], [2, 2])]


def test_partitions_of_patterns_are_read_if_they_are_named(tmp_path):
  folder = _spread(tmp_path / 'at=1', [('day', '1'), ('day', '2')])
  pattern = f'{folder}/day=*/*.parquet'
  assert set(_rows_of(pattern)[0]) == {'n'}
  named = _rows_of(pattern, columns=['at', 'day'])
  assert named == [{'at': [1, 1], 'day': [1, 1]}, {'at': [1, 1], 'day': [2, 2]}]
  assert [
    row['day'] for row in _rows_of(f'{folder}/day=*', columns=['day'])
  ] == [
    [1, 1],
    [2, 2],
  ]
  assert set(_rows_of(folder)[0]) == {'n', 'day'}  # not what is above it


def test_a_partition_that_is_null_needs_a_value(tmp_path):
  null = '__HIVE_DEFAULT_PARTITION__'
  folder = _spread(tmp_path / 'days', [('day', '1'), ('day', null)])
  found = _rows_of(folder, fill={'day': -1})
  assert sorted(row['day'] for row in found) == [[-1, -1], [1, 1]]
  with pytest.raises(tf.errors.OpError, match="'day' is null in 2 of 2 rows"):
    _rows_of(folder)


def test_a_column_of_the_file_goes_before_a_partition(tmp_path):
  folder = _spread(tmp_path / 'days', [('day', '1')], day=[5, 6])
  assert _rows_of(folder) == [{'n': [0, 1], 'day': [5, 6]}]


@pytest.mark.parametrize(
  ('make', 'complaint'),
  [
    (lambda folder: [folder / 'none'], 'the folder .*/none has no files'),
    (
      lambda folder: [folder / 'days', folder / 'days' / 'day=1'],
      'listed more than once',
    ),
    (
      lambda folder: [folder / 'days', folder / 'other'],
      r"has no columns 'day', but n\. Correct",
    ),
  ],
)
def test_what_folders_lack_is_named(tmp_path, make, complaint):
  (tmp_path / 'none').mkdir()
  (tmp_path / 'other').mkdir()
  write(tmp_path / 'other' / 'a.parquet', {'n': [1]})
  _spread(tmp_path / 'days', [('day', '1')])
  with pytest.raises(ValueError, match=complaint):
    tfps.input.Parquet(make(tmp_path))
