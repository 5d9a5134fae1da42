"""Lookups of every kind send few bytes, as the network counts them."""

import pytest

from tests.support import lookups
from tests.support import network_programs


@pytest.mark.exhaustive
@pytest.mark.parametrize('shards', [1, 2])
@pytest.mark.parametrize(
  'strategy', ['ParameterServerStrategy', 'BetweenGraphStrategy']
)
def test_a_step_sends_few_bytes(strategy, shards):
  found = network_programs.run(
    'look_up.py', strategy, str(shards), timeout_secs=500
  )
  assert set(found) == set(lookups.NAMES)
  # Calls of their own, one for each lookup in a loop, have the most.
  assert max(found.values()) < lookups.NUM_BYTES / 20, found
