"""Files and folders that only who makes them may use."""

import os
import stat

import pytest

from tfps import monitor
from tfps._utils import private_files
from tfps.cluster import spec as spec_lib
from tfps.launch import task_output
from tfps.monitor import rates as rates_lib
from tfps.training import end_marker
from tfps.training import training_end


@pytest.fixture(autouse=True)
def _no_umask():
  before = os.umask(0)
  yield
  os.umask(before)


def _mode(path):
  return stat.S_IMODE(path.stat().st_mode)


def _write_marker(folder):
  end_marker.mark(folder, 7)
  return folder / training_end.NAME


def _write_metrics(folder):
  path = folder / 'metrics.jsonl'
  reading = rates_lib.Reading(0.0, [], {})
  monitor.JsonLines(path).write(reading)
  return path


def _write_log(folder):
  task = spec_lib.Task('ps', 0)
  return task_output.TaskOutput([task], folder).path(task)


@pytest.mark.parametrize('write', [_write_marker, _write_metrics, _write_log])
def test_what_is_written_in_a_new_folder_is_private(tmp_path, write):
  path = write(tmp_path / 'a' / 'new')
  assert _mode(path) == 0o600
  assert _mode(path.parent) == 0o700


def test_a_folder_and_a_file_that_exist_keep_their_modes(tmp_path):
  tmp_path.chmod(0o755)
  path = tmp_path / 'file'
  path.touch()
  path.chmod(0o640)
  private_files.make_folder(tmp_path)
  private_files.open_file(path, 'a').close()
  assert (_mode(tmp_path), _mode(path)) == (0o755, 0o640)


def test_all_in_a_folder_is_kept_to_its_owner(tmp_path):
  (tmp_path / 'one').mkdir()
  (tmp_path / 'one/two').touch()
  private_files.keep_to_owner(tmp_path)
  assert _mode(tmp_path / 'one') == 0o700
  assert _mode(tmp_path / 'one/two') == 0o600
