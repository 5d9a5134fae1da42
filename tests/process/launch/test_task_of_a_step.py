"""A task as schedulers run it: its log, its failure, and their signals."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support import waiting
from tfps._utils import signals

_TF_CONFIG = {'cluster': {'ps': ['h:1'], 'worker': ['h:2', 'h:3']}}
_SAVE_AND_LEAVE = """
import os, signal, sys, time
told = []

def leave(*_):
  told.append(1)
  if len(told) == 1:
    time.sleep(1)
    os.write(1, b'saved\\n')  # print may be interrupted in itself
    sys.exit(143)

signal.signal(signal.SIGTERM, leave)
print('ready', flush=True)
time.sleep(600)
"""
_PREEMPTION = """
import signal, time
from tfps.recovery import preemption

def save():
  time.sleep(1)
  print('saved', flush=True)

preemption.Preemption(save)
print('ready', flush=True)
while True:
  time.sleep(0.1)
"""


def _task(program, *options, index=0, **env):
  task = {'type': 'worker', 'index': index}
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'tfps.launch.task', '--silent_secs=0'),
      *(*options, '--', sys.executable, '-c', program),
    ],
    env={
      **os.environ,
      'TF_CONFIG': json.dumps({**_TF_CONFIG, 'task': task}),
      **env,
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def _run(*args, **options):
  """Runs a task to its end; its status and its output."""
  with _task(*args, **options) as process:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_output_is_kept_behind_that_of_earlier_runs(tmp_path):
  option = f'--log_dir={tmp_path}/logs'
  assert _run('print(1)', option) == (0, '[worker:0] 1\n')
  assert _run('print(2)', option) == (0, '[worker:0] 2\n')
  assert _run('print(3)', option, index=1) == (0, '[worker:1] 3\n')
  assert (tmp_path / 'logs' / 'worker-0.log').read_text() == '1\n2\n'
  assert (tmp_path / 'logs' / 'worker-1.log').read_text() == '3\n'
  assert not (tmp_path / 'logs' / 'failure').exists()


def test_the_first_that_fails_leaves_its_name_and_status(tmp_path):
  option = f'--log_dir={tmp_path}'
  status, output = _run('import sys; sys.exit(7)', option, index=1)
  assert status == 7
  assert 'worker:1 failed with status 7' in output
  assert _run('import sys; sys.exit(9)', option)[0] == 9
  assert (tmp_path / 'failure').read_text() == 'worker:1 7\n'


def test_sigterm_to_each_process_and_again_leaves_time_to_save(tmp_path):
  with _task(_SAVE_AND_LEAVE, f'--log_dir={tmp_path}') as process:
    assert process.stdout.readline() == '[worker:0] ready\n'
    told = psutil.Process(process.pid)
    for each in [told, *told.children(recursive=True)] * 2:
      with contextlib.suppress(psutil.NoSuchProcess):
        each.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
  assert process.returncode == 143, output
  assert '[worker:0] saved\n' in output
  assert not (tmp_path / 'failure').exists()


@pytest.mark.parametrize(
  ('repeats', 'rest'),
  [
    pytest.param('', [], id='at once'),
    pytest.param('1', ['saved'], id='under a supervisor'),
  ],
)
def test_a_second_sigterm_ends_a_chief(repeats, rest):
  with subprocess.Popen(
    [sys.executable, '-c', _PREEMPTION],
    env={**os.environ, signals.REPEATS_VARIABLE: repeats},
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'ready\n'
    saving = psutil.Process(process.pid)
    num_threads = saving.num_threads()
    process.send_signal(signal.SIGTERM)
    waiting.until(lambda: saving.num_threads() > num_threads)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
  assert process.returncode == 143
  assert output.split() == rest
