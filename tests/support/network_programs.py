"""Runs programs that count bytes in a network of their own."""

import json
import pathlib
import subprocess
import sys

import pytest

_PROGRAMS = pathlib.Path(__file__).parents[1] / 'programs'


def run(name, *args, timeout_secs):
  """Returns what a program prints last, as JSON; skips without a network.

  Args:
    name: of the program's file.
    *args: its arguments.
    timeout_secs: how long it may take.
  """
  done = subprocess.run(
    [sys.executable, _PROGRAMS / name, *args],
    capture_output=True,
    text=True,
    timeout=timeout_secs,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  last = done.stdout.splitlines()[-1]
  if last == 'denied':
    pytest.skip('This user may not make a network namespace.')
  return json.loads(last)
