"""A task by a command that stands for ssh, which runs it in another session."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support import processes
from tests.support import programs

_SECS = 30
_CONFIG = json.dumps(
  {
    'cluster': {'ps': ['localhost:1'], 'worker': ['localhost:2']},
    'task': {'type': 'ps', 'index': 0},
  }
)
# Copies the task's output, as ssh does, and ends on SIGTERM unless ignored. The
# host has a login of its own.
_SSH = """#!/bin/sh
for command; do :; done
setsid env -i PATH="$PATH" HOME=/ TMPDIR=/there sh -c "$command" | cat
"""
_SAVE = """
import os, signal, sys, time

def save(*_):
  time.sleep(0.3)
  print('saved', flush=True)
  sys.exit(143)

signal.signal(signal.SIGTERM, save)
print('ready', os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def ssh(tmp_path):
  """The command that stands for ssh."""
  path = tmp_path / 'ssh'
  path.write_text(_SSH)
  path.chmod(0o755)
  return str(path)


@pytest.fixture
def over_ssh(ssh):
  """A process that has started a task over ssh, and the task."""
  with subprocess.Popen(
    [
      *(sys.executable, '-m', 'tfps.launch.over_ssh', ssh, 'h', '20', ''),
      *(sys.executable, '-c', _SAVE),
    ],
    env={**os.environ, 'TF_CONFIG': _CONFIG},
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
  ) as process:
    pid = int(process.stdout.readline().split()[-1])
    yield process, psutil.Process(pid)
    process.kill()


@pytest.mark.parametrize(
  'signalled',
  [
    pytest.param(lambda parent: os.killpg(parent.pid, 15), id='group'),
    pytest.param(
      lambda parent: [
        each.send_signal(15)
        for each in [*parent.children(recursive=True), parent]
      ],
      id='all processes',
    ),
  ],
)
def test_a_task_is_heard_until_it_has_ended(over_ssh, signalled):
  process, task = over_ssh
  signalled(psutil.Process(process.pid))
  output, _ = process.communicate(timeout=_SECS)
  assert output.splitlines() == ['saved']
  assert not task.is_running()


def test_nothing_is_left_when_it_is_killed(over_ssh):
  process, _ = over_ssh
  family = psutil.Process(process.pid).children(recursive=True)
  process.send_signal(signal.SIGKILL)
  processes.wait_for_end(family)


@pytest.mark.parametrize(
  ('options', 'expected'),
  [
    pytest.param(['--env=TMPDIR=/a b'], '/a b', id='given'),
    pytest.param([], '/there', id='not given'),
  ],
)
def test_what_belongs_to_a_login_stays_unless_it_is_given(
  ssh, tmp_path, options, expected
):
  sizes = ['--num_ps=0', '--num_chiefs=0']
  output = subprocess.check_output(
    [
      *(sys.executable, '-m', 'tfps.launch', '--hosts=h:1', f'--ssh={ssh}'),
      *(*sizes, *options, programs.LAUNCHED),
    ],
    env={**os.environ, 'TMPDIR': '/tmp', 'MARK': 'x'},
    cwd=tmp_path,
    timeout=_SECS,
  )
  facts = json.loads(output.removeprefix(b'[worker:0] '))
  assert (facts['tmp'], facts['mark']) == (expected, 'x')
