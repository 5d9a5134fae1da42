"""Files and ranges, shared out for good."""

import os

import pytest
import tensorflow as tf

import tfps
from tfps.input import splits


def _context(index, number):
  return tf.distribute.InputContext(
    num_input_pipelines=number, input_pipeline_id=index
  )


@pytest.fixture
def folder(tmp_path):
  for i in range(5):
    (tmp_path / f'part-{i}').write_text(f'{i}')
  return tmp_path


def test_patterns_stand_for_their_files_in_order(folder):
  found = tfps.input.Files([folder / 'part-[34]', folder / 'part-1'])
  assert [os.path.basename(path) for path in found.paths] == [
    'part-3',
    'part-4',
    'part-1',
  ]


def test_files_are_read_by_the_reader(folder):
  found = tfps.input.Files(
    folder / 'part-*', reader=lambda path: tf.data.TextLineDataset(path)
  )
  lines = list(found.read(tf.constant(2, tf.int64)).as_numpy_iterator())
  assert lines == [b'2']


def test_ranges_cover_all_numbers_once():
  ranges = tfps.input.Ranges(23, 5)
  assert len(ranges) == 5
  numbers = [
    number
    for split in range(5)
    for number in ranges.read(tf.constant(split, tf.int64)).as_numpy_iterator()
  ]
  assert numbers == list(range(23))


@pytest.mark.parametrize('num_workers', [1, 2, 5])
def test_each_file_is_one_workers(folder, num_workers):
  shares = [
    tfps.input.shard(folder / 'part-*', _context(i, num_workers))
    for i in range(num_workers)
  ]
  assert sorted(path for share in shares for path in share) == sorted(
    str(path) for path in folder.iterdir()
  )
  assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
  ('make', 'complaint'),
  [
    (lambda: tfps.input.Files('/nowhere/x-*'), "nothing matches '/nowhere/x-"),
    (lambda: tfps.input.Files([]), r'files=\[\]: give one file'),
    (lambda: tfps.input.Files(['a', 'b', 'a']), 'files: a is listed more than'),
    (lambda: tfps.input.Ranges(0, 5), 'Ranges: total=0 must be 1 or more'),
    (lambda: tfps.input.Ranges(5, 2.5), 'Ranges: size=2.5 must be 1 or more'),
    (
      lambda: tfps.input.shard(['a', 'b'], _context(2, 3)),
      '2 cannot be shared out to 3 workers.*SplitQueue',
    ),
    (
      lambda: tfps.input.SplitQueue(tfps.input.Ranges(1, 1)),
      'make it in the scope of a tfps.ParameterServerStrategy',
    ),
    (
      lambda: tfps.input.SplitQueue(tfps.input.Ranges(1, 1), epochs=0),
      'epochs=0 must be 1 or more, or None',
    ),
    (
      lambda: tfps.input.SplitQueue(
        tfps.input.Ranges(1, 1), visitation='at_most_once'
      ),
      "visitation='at_most_once' is neither",
    ),
  ],
  ids=[
    'no match',
    'no file',
    'twice',
    'empty range',
    'half a number',
    'more workers than files',
    'no strategy',
    'no epoch',
    'no such visitation',
  ],
)
def test_bad_input_is_told(make, complaint):
  with pytest.raises(ValueError, match=complaint):
    make()


def test_other_splits_have_another_fingerprint():
  files = [splits.Files(['a/x', 'a/y']), splits.Files(['a/y', 'a/x'])]
  ranges = [splits.Ranges(10, 2), splits.Ranges(10, 3)]
  found = {each.fingerprint() for each in (*files, *ranges)}
  assert len(found) == 4


_SAME = {
  'mounted elsewhere': (['/a/b/c/x'], ['/mnt/b/c/x']),
  'under another folder': (
    ['/b/c/d/x', '/b/c/e/x'],
    ['/a/b/c/d/x', '/a/b/c/e/x'],
  ),
  'a relative path': (['./b/c/x'], ['b/c//x']),
  'a store': (['s3://bucket/b/c/x'], ['/mnt/b/c/x']),
  'its partitions, too': (['/a/day=1/b/c/d/x'], ['/mnt/day=1/b/c/d/x']),
}
_OTHER = {
  'days': (['/a/day=1/x'], ['/a/day=2/x']),
  'several of a day': (['/a/1/x', '/a/1/y'], ['/a/2/x', '/a/2/y']),
  'months': (['/a/2026/1/1/x'], ['/a/2026/2/1/x']),
  'years': (['/a/2026/b/c/d/x'], ['/a/2027/b/c/d/x']),
  'folders of days': (['/a/monday/b/x'], ['/a/tuesday/b/x']),
  'days in one queue': (
    ['/a/b/c/1/x', '/a/b/c/2/x'],
    ['/a/b/c/1/x', '/a/b/c/3/x'],
  ),
  'files': (['x'], ['y']),
}


@pytest.mark.parametrize(('one', 'other'), _SAME.values(), ids=_SAME)
def test_files_that_were_moved_are_the_same(one, other):
  assert splits.Files(one).fingerprint() == splits.Files(other).fingerprint()


@pytest.mark.parametrize(('one', 'other'), _OTHER.values(), ids=_OTHER)
def test_files_of_other_folders_are_others(one, other):
  assert splits.Files(one).fingerprint() != splits.Files(other).fingerprint()
