"""A ps that dies while tensors travel is told, on the wire or not."""

import json
import pathlib
import subprocess
import sys

import pytest

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'lose_ps.py'


@pytest.mark.exhaustive
def test_a_ps_that_dies_is_told_as_without_the_wire():
  done = subprocess.run(
    [sys.executable, _PROGRAM],
    capture_output=True,
    text=True,
    timeout=200,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  unfused, fused, encoded = json.loads(done.stdout.splitlines()[-1])
  # Which of these comes first is a matter of chance.
  assert {unfused, fused, encoded} <= {'UnavailableError', 'CancelledError'}
