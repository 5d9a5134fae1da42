"""Runs Python programs that have TensorFlow and Keras in place at once.

One process imports both for all tests of a run, and forks the programs. Tests
that start clusters of programs ask for the same modules, and share it.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile

from tfps._utils import processes
from tfps.launch import command
from tfps.launch import forked_process

PRELOAD = ('tensorflow', 'keras')


@dataclasses.dataclass(frozen=True)
class Ended:
  """A program that has ended.

  Attributes:
    status: its exit status.
    output: everything that it wrote.
  """

  status: int
  output: str


def run(*words, cwd=None, timeout_secs=240.0, **env) -> Ended:
  """Runs a program, or -m and a module, with arguments, to its end."""
  # As clusters of processes have it, so that they share the forking process.
  env = os.environ | {'PYTHONUNBUFFERED': '1'} | env
  with tempfile.TemporaryFile() as output:
    with _within(cwd):
      process = forked_process.spawn(
        [sys.executable, *map(str, words)],
        env=env,
        stdout=output,
        preload=PRELOAD,
        timeout_secs=120.0,
      )
    try:
      status = process.wait(timeout_secs)
    finally:
      processes.kill(process)
    output.seek(0)
    return Ended(status, output.read().decode(errors='replace'))


def launch(capfd, *words, cwd=None) -> Ended:
  """Runs `tfps launch` within this process, whose tasks are forked."""
  with _within(cwd):
    preload = f'--preload={",".join(PRELOAD)}'
    status = command.main([preload, *map(str, words)])
  return Ended(status, ''.join(capfd.readouterr()))


@contextlib.contextmanager
def _within(folder: pathlib.Path | None):
  """Changes the working directory for a while."""
  before = os.getcwd()
  os.chdir(folder or before)
  try:
    yield
  finally:
    os.chdir(before)
