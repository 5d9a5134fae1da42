"""Logs of processes that have crashed."""

import subprocess
import sys

from tfps._utils import processes

_CRASHES = """
import faulthandler, signal
import numpy

def crash():
  signal.raise_signal(signal.SIGSEGV)

faulthandler.enable()
crash()
"""


def test_the_end_of_the_log_of_a_crash_says_where_it_was():
  crashed = subprocess.run(
    [sys.executable, '-c', _CRASHES], stderr=subprocess.PIPE, text=True
  )
  log = crashed.stderr
  assert 'Extension modules: numpy' in log
  end = processes.end_of_log(log)
  assert 'in crash' in end
  assert 'numpy' not in end
  assert len(processes.end_of_log('a line\n' * 1000)) == 3000
