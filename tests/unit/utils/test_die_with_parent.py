"""Commands that are tied to this process."""

import signal
import subprocess

import pytest

from tfps._utils import processes


@pytest.mark.parametrize('number', [signal.SIGPIPE, signal.SIGXFSZ])
def test_signals_that_python_ignores_end_a_command(number):
  command = ['sh', '-c', f'kill -s {number.name[3:]} $$']
  process = processes.spawn(command, env={}, stdout=subprocess.DEVNULL)
  assert process.wait(30) == -number
