"""What the wire counts is what the network carries."""

import json
import pathlib
import subprocess
import sys

import pytest

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'count_bytes.py'


@pytest.mark.exhaustive
def test_bytes_are_those_that_the_loopback_interface_counts():
  done = subprocess.run(
    [sys.executable, _PROGRAM],
    capture_output=True,
    text=True,
    timeout=200,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  last = done.stdout.splitlines()[-1]
  if last == 'denied':
    pytest.skip('This user may not make a network namespace.')
  found = json.loads(last)
  assert len(found) == 4
  for way, numbers in found.items():
    assert numbers['steps'] == 60, way
    assert numbers['interface'] == pytest.approx(numbers['wire'], rel=0.1), way
