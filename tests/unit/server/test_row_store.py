"""Rows in frames and in files, compared with an array of all rows."""

import pathlib

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from tfps.server import row_file
from tfps.server import row_stores
from tfps.testing.chaos import disks

_WIDTH, _ROWS = 2, 40
_ROW_BYTES = 4 * _WIDTH
_FIRST = np.array([[7, 8]], 'f')  # of rows that were never written


def _place(directory, *, name='rows', num_frames=6):
  return row_file.Place(
    name=name,
    group='group',
    memory_bytes=num_frames * _ROW_BYTES,
    directory=str(directory),
    owner='keyed on ps:0',
  )


def _store(place, stores=None):
  return (stores or row_stores.Stores()).store(place, _FIRST)


def _read(store, rows):
  rows = np.asarray(rows)
  return store.read(rows, np.repeat(_FIRST, len(rows), axis=0))


_ACCESSES = st.lists(
  st.tuples(
    st.booleans(),
    st.lists(st.integers(0, _ROWS - 1), max_size=12, unique=True),
  ),
  max_size=30,
)


@pytest.mark.parametrize('num_frames', [0, 1, 6, _ROWS])
def test_rows_are_those_of_an_array(tmp_path, num_frames):
  @settings(deadline=None, max_examples=50)
  @given(accesses=_ACCESSES)
  def check(accesses):
    store = _store(_place(tmp_path, num_frames=num_frames))
    expected = np.repeat(_FIRST, _ROWS, axis=0)
    written = set()
    for number, (writes, rows) in enumerate(accesses):
      rows = np.array(rows, np.int64)
      if writes:
        expected[rows] += rows[:, None] + number
        store.write(rows, expected[rows])
        written.update(rows.tolist())
      np.testing.assert_array_equal(_read(store, rows), expected[rows])
    np.testing.assert_array_equal(_read(store, np.arange(_ROWS)), expected)
    counts = store.counts()
    assert counts.in_memory == min(num_frames, len(written))
    assert counts.in_memory + counts.in_file == len(written)
    assert counts.end == max(written, default=-1) + 1

  check()


def test_rows_not_written_for_long_go_to_the_file(tmp_path):
  store = _store(_place(tmp_path, num_frames=4))
  for row in (0, 1, 2, 3, 0, 1, 4, 5):
    store.write(np.array([row]), _FIRST)
  counts = store.counts()
  assert (counts.moved_out, counts.moved_in) == (2, 0)
  store.write(np.array([0, 1, 4, 5]), np.repeat(_FIRST, 4, axis=0))
  assert store.counts() == counts  # all of them had stayed
  store.write(np.array([2]), _FIRST)
  counts = store.counts()
  assert (counts.moved_out, counts.moved_in) == (3, 1)
  assert (counts.in_memory, counts.in_file) == (4, 2)
  assert counts.memory_bytes == 4 * _ROW_BYTES


def test_stores_of_a_group_share_its_memory(tmp_path):
  stores = row_stores.Stores()
  rows = _store(_place(tmp_path), stores)
  numbers = np.arange(6)
  values = np.arange(12, dtype='f').reshape(6, 2)
  rows.write(numbers, values)
  assert rows.counts().in_memory == 6
  slots = _store(_place(tmp_path, name='slots'), stores)
  slots.write(numbers, -values)
  rows.write(numbers[:1], values[:1])
  assert [s.counts().in_memory for s in (rows, slots)] == [3, 3]
  both = stores.counts(_place(tmp_path), all_of_group=True)
  assert (both.in_memory, both.in_file) == (6, 6)
  np.testing.assert_array_equal(_read(rows, numbers), values)
  np.testing.assert_array_equal(_read(slots, numbers), -values)
  rows, slots = _place(tmp_path), _place(tmp_path, name='slots')
  stores.forget(rows, all_of_group=False)
  assert stores.counts(rows, all_of_group=False).end == 0
  assert stores.counts(rows, all_of_group=True).end == 6
  stores.forget(rows, all_of_group=True)
  assert stores.counts(slots, all_of_group=True).end == 0
  np.testing.assert_array_equal(_read(_store(slots, stores), [5]), _FIRST)


def test_a_file_is_private_and_leaves_nothing_behind(tmp_path):
  directory = tmp_path / 'new' / 'rows'
  store = _store(_place(directory, num_frames=0))
  store.write(np.arange(3000), np.ones((3000, 2), 'f'))
  own = pathlib.Path('/proc/self/fd')
  found = [
    path
    for path in own.iterdir()
    if path.exists() and str(path.readlink()).startswith(str(directory))
  ]
  assert len({path.stat().st_ino for path in found}) == 1
  assert found[0].stat().st_mode & 0o777 == 0o600
  assert found[0].stat().st_nlink == 0
  assert found[0].stat().st_size == store.counts().file_bytes >= 3000 * 8
  assert not list(directory.iterdir())


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(ValueError, match=f'keyed on ps:0 .* in {tmp_path}/file/'):
    _store(_place(tmp_path / 'file' / 'rows'))


@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
def test_a_full_disk_loses_nothing(tmp_path):
  with disks.small_disk(2**20) as folder:
    store = _store(_place(folder, num_frames=100))
    number = 2**17 // _ROW_BYTES
    values = np.arange(2.0 * number, dtype='f').reshape(-1, 2)
    store.write(np.arange(number), values)
    with (
      disks.full_disk(folder),
      pytest.raises(ValueError, match=f'keyed on ps:0 .* in {folder}, .*space'),
    ):
      store.write(np.arange(number, 2 * number), values)
    np.testing.assert_array_equal(_read(store, np.arange(number)), values)
    before = store.counts()
    store.write(np.arange(number, 2 * number), values)
    assert store.counts().end == 2 * before.end


def test_frozen_rows_are_those_of_one_moment(tmp_path):
  store = _store(_place(tmp_path))
  numbers = np.array([30, 3, 17, 8, 9, 21, 5, 2])
  values = np.arange(16, dtype='f').reshape(8, 2)
  store.write(numbers, values)
  assert store.freeze() == 31
  store.write(numbers, -values)
  store.write(np.array([10, 40]), values[:2])
  rows = np.r_[numbers, 10, 40]
  otherwise = np.repeat(_FIRST, 10, axis=0)
  frozen = store.read_frozen(rows, otherwise)
  np.testing.assert_array_equal(frozen, np.r_[values, _FIRST, _FIRST])
  np.testing.assert_array_equal(_read(store, numbers), -values)
  store.thaw()
  with pytest.raises(ValueError, match='has been dropped'):
    store.read_frozen(rows, otherwise)
