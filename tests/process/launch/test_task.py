"""One task under a supervisor of its own, as other engines start it."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support import programs
from tests.support import waiting
from tfps.launch import task as task_lib

_SECS = 30
_CONFIG = json.dumps(
  {
    'cluster': {'ps': ['localhost:1'], 'worker': ['localhost:2']},
    'task': {'type': 'ps', 'index': 0},
  }
)
_TASK = (sys.executable, '-m', 'tfps.launch.task')


def _run(*words, **env):
  return subprocess.run(
    [*_TASK, *words],
    env=os.environ | env,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=_SECS,
  )


def _program(deed):
  return [sys.executable, programs.LAUNCHED, f'ps={deed}']


def test_output_and_status_are_the_tasks():
  done = _run('--', *_program('tell'), TF_CONFIG=_CONFIG)
  assert done.returncode == 0
  assert json.loads(done.stdout)['task'] == {'type': 'ps', 'index': 0}
  failed = _run('--', *_program('fail'), TF_CONFIG=_CONFIG)
  assert failed.returncode == 7
  assert failed.stderr == '[launch] ps:0 failed with status 7.\n'


def test_it_is_started_again_after_a_signal_only_so_often():
  command = ['sh', '-c', 'echo started; kill -9 $$']
  done = _run('--max_restarts=2', '--', *command, TF_CONFIG=_CONFIG)
  assert done.returncode == 137
  assert done.stdout == 3 * 'started\n'


@pytest.mark.parametrize(
  ('words', 'config', 'complaint'),
  [
    pytest.param([], _CONFIG, 'no command', id='command'),
    pytest.param(['--', 'true'], '{', 'TF_CONFIG', id='TF_CONFIG'),
    pytest.param(['--orders'], _CONFIG, 'no order', id='order'),
  ],
)
def test_what_is_wrong_is_named(words, config, complaint):
  done = _run(*words, TF_CONFIG=config)
  assert done.returncode == 1
  assert complaint in done.stderr


@pytest.fixture
def ordered(tmp_path):
  """A task that got its order, and the id of its process."""
  order = task_lib.Order(
    tuple(_program('sleep')), {'TF_CONFIG': _CONFIG}, str(tmp_path)
  )
  process = subprocess.Popen(
    [*_TASK, '--orders', '--silent_secs=0'],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )
  with process:
    process.stdin.write(order.line())
    process.stdin.flush()
    pid = int(process.stdout.readline().split()[1])
    yield process, pid
    process.kill()


@pytest.mark.parametrize(
  'end',
  [
    pytest.param(lambda process: process.stdin.close(), id='end of input'),
    pytest.param(lambda process: process.stdin.write(b'stop\n'), id='stop'),
    pytest.param(lambda process: process.terminate(), id='SIGTERM'),
  ],
)
def test_an_ordered_task_ends_when_it_is_told(ordered, end):
  process, pid = ordered
  end(process)
  if not process.stdin.closed:
    process.stdin.flush()
  assert process.wait(_SECS) == 128 + signal.SIGTERM
  assert not psutil.pid_exists(pid)


def test_an_ordered_task_dies_with_its_supervisor(ordered):
  process, pid = ordered
  process.kill()
  waiting.until(lambda: not psutil.pid_exists(pid), timeout_secs=_SECS)


@pytest.mark.parametrize('line', [b'', b'{}', b'[1]', b'no'])
def test_a_wrong_order_is_quoted(line):
  with pytest.raises(ValueError, match='is not valid'):
    task_lib.Order.parse(line)
