"""Lookups of every kind send few bytes, as the network counts them."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.support import lookups

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'look_up.py'


@pytest.mark.exhaustive
@pytest.mark.parametrize('shards', [1, 2])
@pytest.mark.parametrize(
  'strategy', ['ParameterServerStrategy', 'BetweenGraphStrategy']
)
def test_a_step_sends_few_bytes(strategy, shards):
  done = subprocess.run(
    [sys.executable, _PROGRAM, strategy, str(shards)],
    capture_output=True,
    text=True,
    timeout=500,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  last = done.stdout.splitlines()[-1]
  if last == 'denied':
    pytest.skip('This user may not make a network namespace.')
  found = json.loads(last)
  assert set(found) == set(lookups.NAMES)
  # Calls of their own, one for each lookup in a loop, have the most.
  assert max(found.values()) < lookups.NUM_BYTES / 20, found
