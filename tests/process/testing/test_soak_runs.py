"""Training goes on for long, and ends in order."""

import re
import subprocess
import sys

import pytest

from tfps.testing.chaos import soak


@pytest.mark.exhaustive
def test_training_is_watched_struck_and_ended(capsys):
  args = ['--minutes=0.03', '--every_secs=1', '--seed=3', '--faults', 'freeze']
  assert soak.main(args) == 0
  output = capsys.readouterr().out
  assert 'chief:0 has ended with status 143' in output
  assert int(re.search(r'(\d+) faults', output)[1]) > 0
  assert output.count('freeze') >= 2  # beginning and end


@pytest.mark.exhaustive
def test_a_short_soak_ends_in_order():
  command = (sys.executable, '-m', 'tfps.testing.chaos.soak', '--minutes=0.25')
  done = subprocess.run(
    [*command, '--every_secs=4', '--seed=3'],
    capture_output=True,
    text=True,
    timeout=150,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'chief:0 has ended with status 143' in done.stdout
  assert int(re.search(r'(\d+) faults', done.stdout)[1]) > 0
