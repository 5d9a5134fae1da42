"""Disks are as small and as full as they are said to be, and leave nothing."""

import errno
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.support import waiting
from tfps import testing
from tfps.testing.chaos import disks

_PROBLEM = disks.problem()
_needs_disk = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)

_BYTES = 2**20

_OWNER = """
import pathlib, sys, time
from tfps import testing

with testing.small_disk(2**20) as folder:
  print(folder, flush=True)
  time.sleep(600)
"""

_FILLER = """
import sys, time
from tfps import testing

with testing.full_disk(sys.argv[1]):
  print('full', flush=True)
  time.sleep(600)
"""


@pytest.fixture
def disk():
  with testing.small_disk(_BYTES) as folder:
    yield folder


def free(folder):
  return shutil.disk_usage(folder).free


def leave_open(path, files):
  files.append(path.open('w'))
  raise KeyError


def delete(path, free_bytes):
  """Deletes a file, and waits until no more than that is free."""
  path.unlink()
  waiting.until(lambda: free(path.parent) <= free_bytes)


def kill_once_it_speaks(*command):
  """Kills a Python program when it has written a line, which is returned."""
  process = subprocess.Popen(
    [sys.executable, '-c', *command], stdout=subprocess.PIPE, text=True
  )
  with process:
    line = process.stdout.readline().strip()
    process.kill()
  return line


@_needs_disk
def test_a_small_disk_has_its_size_and_goes(tmp_path):
  with testing.small_disk(_BYTES) as folder:
    assert shutil.disk_usage(folder).total == _BYTES
    assert folder.stat().st_dev != tmp_path.stat().st_dev
    (folder / 'file').write_bytes(bytes(_BYTES // 2))
  assert not folder.exists()


@_needs_disk
def test_a_small_disk_goes_after_an_error_although_a_file_is_open():
  files = []
  with pytest.raises(KeyError), testing.small_disk(_BYTES) as folder:
    leave_open(folder / 'file', files)
  assert not folder.exists()
  files[0].close()


@_needs_disk
def test_a_small_disk_goes_with_a_process_that_is_killed():
  folder = pathlib.Path(kill_once_it_speaks(_OWNER))
  assert folder.name.startswith('tfps-disk-')
  waiting.until(lambda: not folder.exists())


@_needs_disk
def test_a_full_disk_takes_nothing_until_it_has_room_again(disk):
  with testing.full_disk(disk):
    assert free(disk) == 0
    with pytest.raises(OSError) as raised:
      (disk / 'file').write_text('x')
    assert raised.value.errno == errno.ENOSPC
    assert [path.name for path in disk.iterdir()] == ['file']
  (disk / 'file').write_text('x')


@_needs_disk
def test_a_full_disk_takes_what_others_delete(disk):
  (disk / 'file').write_bytes(bytes(_BYTES // 2))
  with testing.full_disk(disk):
    delete(disk / 'file', 0)
  assert free(disk) == _BYTES


@_needs_disk
def test_a_disk_has_room_again_after_an_error(disk):
  with pytest.raises(KeyError), testing.full_disk(disk):
    raise KeyError
  assert free(disk) == _BYTES


@_needs_disk
def test_a_disk_has_room_again_once_who_filled_it_is_killed(disk):
  assert kill_once_it_speaks(_FILLER, str(disk)) == 'full'
  waiting.until(lambda: free(disk) == _BYTES)


@_needs_disk
def test_no_more_is_taken_than_allowed(disk):
  (disk / 'file').write_bytes(bytes(_BYTES // 2))
  with (
    pytest.raises(RuntimeError, match=f'More than {_BYTES // 2} bytes'),
    testing.full_disk(disk, max_free_bytes=_BYTES // 2),
  ):
    delete(disk / 'file', _BYTES // 2 - 1)


def test_a_disk_that_is_large_is_not_filled(tmp_path):
  found = free(tmp_path)
  with (
    pytest.raises(
      ValueError, match=rf'{tmp_path}: its disk has \d+ bytes free.*most 4096 '
    ),
    testing.full_disk(tmp_path, max_free_bytes=4096),
  ):
    pass
  assert found > 4096
  assert list(tmp_path.iterdir()) == []


def test_a_small_disk_has_a_size():
  with (
    pytest.raises(ValueError, match='num_bytes is 0'),
    testing.small_disk(0),
  ):
    pass
