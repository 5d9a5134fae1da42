"""A task by a command that stands for ssh, which runs it in another session."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support import processes

_SECS = 30
_CONFIG = json.dumps(
  {
    'cluster': {'ps': ['localhost:1'], 'worker': ['localhost:2']},
    'task': {'type': 'ps', 'index': 0},
  }
)
# Copies the task's output, as ssh does, and ends on SIGTERM unless ignored.
_SSH = """#!/bin/sh
for command; do :; done
setsid sh -c "$command" | cat
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
def over_ssh(tmp_path):
  """A process that has started a task over ssh, and the task."""
  ssh = tmp_path / 'ssh'
  ssh.write_text(_SSH)
  ssh.chmod(0o755)
  with subprocess.Popen(
    [
      *(sys.executable, '-m', 'tfps.launch.over_ssh', str(ssh), 'h', '20'),
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
