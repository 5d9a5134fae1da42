"""`tfps top` in a terminal, beside a job."""

import contextlib
import os
import pathlib
import pty
import select
import subprocess
import sys

import keras
import pytest

from tests.support import waiting
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2, processes=True)


class _Terminal:
  """A terminal in which a command runs."""

  def __init__(self, words):
    self._ours, theirs = pty.openpty()
    self.shown = ''
    self.process = subprocess.Popen(
      words,
      stdin=theirs,
      stdout=theirs,
      stderr=theirs,
      env={**os.environ, 'COLUMNS': '200', 'TERM': 'xterm'},
    )
    os.close(theirs)

  def read(self):
    with contextlib.suppress(OSError):  # the command has ended
      while select.select([self._ours], [], [], 0)[0]:
        self.shown += os.read(self._ours, 1 << 16).decode(errors='replace')
    return self.shown

  def press(self, key):
    os.write(self._ours, key.encode())

  def close(self):
    self.process.kill()
    self.process.wait()
    os.close(self._ours)


def _has_keras(process):
  """Whether a process has the compiled part of what Keras alone imports."""
  return 'optree' in pathlib.Path(f'/proc/{process}/maps').read_text()


def test_it_shows_tasks_until_it_is_quit_also_with_one_lost(tfps_cluster):
  address = tfps_cluster.cluster.address(tfps.Task('ps', 0))
  terminal = _Terminal(
    [
      *(sys.executable, '-m', 'tfps.cli', 'top'),
      *(f'--address={address}', '--every_secs=0.3', '--timeout_secs=2'),
    ]
  )
  try:
    waiting.until(lambda: 'ps:1' in terminal.read(), timeout_secs=120)
    assert _has_keras('self'), keras.__version__
    assert not _has_keras(terminal.process.pid)  # it would take twice as long
    tfps_cluster.kill('ps', 1)
    waiting.until(lambda: 'unreachable' in terminal.read(), timeout_secs=60)
    terminal.press('q')
    waiting.until(
      lambda: (terminal.read(), terminal.process.poll())[1] is not None,
      timeout_secs=60,
    )
    assert terminal.process.returncode == 0, terminal.shown[-3000:]
    assert 'Traceback' not in terminal.shown
  finally:
    terminal.close()
