"""What the wire counts is what the network carries."""

import pytest

from tests.support import network_programs


@pytest.mark.exhaustive
def test_bytes_are_those_that_the_loopback_interface_counts():
  found = network_programs.run('count_bytes.py', timeout_secs=200)
  assert len(found) == 4
  for way, numbers in found.items():
    assert numbers['steps'] == 60, way
    assert numbers['interface'] == pytest.approx(numbers['wire'], rel=0.1), way
