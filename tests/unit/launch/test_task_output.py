import os
import pathlib
import shutil
import subprocess

import pytest

from tfps.cluster import spec as spec_lib
from tfps.launch import task_output

_TASKS = (spec_lib.Task('ps', 0), spec_lib.Task('worker', 0))


def _copy(folder, text, **options):
  """What is shown of a text that each task writes."""
  with (folder / 'shown').open('wb') as stream:
    output = task_output.TaskOutput(
      _TASKS, folder / 'logs', stream=stream, **options
    )
    for task in _TASKS:
      with subprocess.Popen(
        ['printf', '%b', text], stdout=subprocess.PIPE
      ) as process:
        output.copy(task, process.stdout)
  return output, (folder / 'shown').read_bytes()


@pytest.mark.parametrize(
  ('text', 'shown', 'kept'),
  [
    pytest.param(
      'a\\nb\\n',
      b'[ps:0] a\n[ps:0] b\n[worker:0] a\n[worker:0] b\n',
      b'a\nb\n',
      id='lines',
    ),
    pytest.param('a', b'[ps:0] a\n[worker:0] a\n', b'a', id='no end of line'),
    pytest.param(
      '\\0377\\n', b'[ps:0] \xff\n[worker:0] \xff\n', b'\xff\n', id='no text'
    ),
    pytest.param('\\n', b'[ps:0] \n[worker:0] \n', b'\n', id='empty line'),
    pytest.param('', b'', b'', id='nothing'),
  ],
)
def test_lines_are_shown_and_kept(tmp_path, text, shown, kept):
  output, found = _copy(tmp_path, text)
  assert found == shown
  assert (tmp_path / 'logs' / 'ps-0.log').read_bytes() == kept
  assert (tmp_path / 'logs' / 'worker-0.log').read_bytes() == kept
  assert output.last_lines(_TASKS[0]) == shown.split(b'[w')[0].decode(
    errors='replace'
  ).replace('[ps:0] ', '')


def test_each_task_has_its_colour(tmp_path):
  _, shown = _copy(tmp_path, 'x\\n', colour=True)
  assert shown == (b'\x1b[36m[ps:0]\x1b[0m x\n\x1b[33m[worker:0]\x1b[0m x\n')


def test_only_the_last_lines_are_remembered(tmp_path):
  output, _ = _copy(tmp_path, ''.join(f'line {i}\\n' for i in range(100)))
  lines = output.last_lines(_TASKS[1]).splitlines()
  assert lines == [f'line {i}' for i in range(90, 100)]


def test_files_of_an_earlier_run_are_emptied(tmp_path):
  _copy(tmp_path, 'old\\n')
  _copy(tmp_path, 'new\\n')
  assert (tmp_path / 'logs' / 'ps-0.log').read_text() == 'new\n'


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(ValueError, match=r'kept in .*/file/logs: .*log_dir'):
    task_output.TaskOutput(_TASKS, tmp_path / 'file' / 'logs')


def test_files_go_on_when_nobody_reads_the_stream(tmp_path):
  reader, writer = os.pipe()
  os.close(reader)
  with os.fdopen(writer, 'wb') as stream:
    output = task_output.TaskOutput(_TASKS, tmp_path, stream=stream)
    with subprocess.Popen(['seq', '3'], stdout=subprocess.PIPE) as process:
      output.copy(_TASKS[0], process.stdout)
  assert output.path(_TASKS[0]).read_text() == '1\n2\n3\n'


@pytest.mark.parametrize(
  ('folder_is_full', 'stream_is_full'),
  [(True, False), (False, True), (True, True)],
  ids=['files', 'stream', 'both'],
)
def test_tasks_go_on_when_a_disk_is_full(
  tmp_path, folder_is_full, stream_is_full
):
  shown = pathlib.Path('/dev/full') if stream_is_full else tmp_path / 'shown'
  with shown.open('wb') as stream, (tmp_path / 'own').open('wb') as own:
    output = task_output.TaskOutput(
      _TASKS, tmp_path / 'logs', stream=stream, own_stream=own
    )
    if folder_is_full:
      output.path(_TASKS[0]).unlink()
      output.path(_TASKS[0]).symlink_to('/dev/full')
    with subprocess.Popen(['seq', '99'], stdout=subprocess.PIPE) as process:
      output.copy(_TASKS[0], process.stdout)
  assert process.returncode == 0
  assert output.last_lines(_TASKS[0]).endswith('98\n99\n')
  said = (tmp_path / 'own').read_text().splitlines()
  assert len(said) == folder_is_full + stream_is_full
  assert all('No space left on device' in line for line in said)
  full = [output.path(_TASKS[0])] * folder_is_full
  assert all(f'left out of {path}: ' in said[0] for path in full)
  taken = [shown] * (not stream_is_full)
  taken += [output.path(_TASKS[0])] * (not folder_is_full)
  assert all(path.read_text().endswith('99\n') for path in taken)


def test_tasks_go_on_when_nothing_can_be_said(tmp_path):
  with open('/dev/full', 'wb') as stream:
    output = task_output.TaskOutput(
      _TASKS, tmp_path, stream=stream, own_stream=stream
    )
    output.say('hello')
    with subprocess.Popen(['seq', '3'], stdout=subprocess.PIPE) as process:
      output.copy(_TASKS[0], process.stdout)
  assert output.path(_TASKS[0]).read_text() == '1\n2\n3\n'


def test_tasks_go_on_when_a_file_is_gone(tmp_path):
  with (tmp_path / 'shown').open('wb') as stream:
    output = task_output.TaskOutput(
      _TASKS, tmp_path / 'logs', stream=stream, own_stream=stream
    )
    shutil.rmtree(tmp_path / 'logs')
    with subprocess.Popen(['seq', '3'], stdout=subprocess.PIPE) as process:
      output.copy(_TASKS[0], process.stdout)
  shown = (tmp_path / 'shown').read_text()
  assert shown.endswith('[ps:0] 1\n[ps:0] 2\n[ps:0] 3\n')


@pytest.mark.parametrize(
  ('env', 'expected'),
  [
    pytest.param({}, True, id='unset'),
    pytest.param({'NO_COLOR': ''}, True, id='empty'),
    pytest.param({'NO_COLOR': '1'}, False, id='set'),
  ],
)
def test_a_terminal_is_coloured_unless_no_color(env, expected):
  ours, theirs = os.openpty()
  with os.fdopen(ours), os.fdopen(theirs, 'w') as terminal:
    assert task_output.wants_colour(terminal, env) is expected


def test_a_file_is_not_coloured(tmp_path):
  with (tmp_path / 'file').open('w') as file:
    assert not task_output.wants_colour(file, {})


@pytest.mark.parametrize(
  ('env', 'expected'),
  [
    pytest.param({'FORCE_COLOR': '1'}, True, id='forced'),
    pytest.param({'FORCE_COLOR': ''}, False, id='empty'),
    pytest.param({'FORCE_COLOR': '1', 'NO_COLOR': '1'}, False, id='both'),
  ],
)
def test_a_pipe_is_coloured_where_it_is_asked_for(env, expected):
  ours, theirs = os.pipe()
  with os.fdopen(ours), os.fdopen(theirs, 'w') as pipe:
    assert task_output.wants_colour(pipe, env) is expected
