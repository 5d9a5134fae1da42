"""What tests share that start processes."""

import pytest


@pytest.fixture
def processes(tfps_cluster):
  """The cluster that the marker of a module asks for, healed before a test."""
  return tfps_cluster
