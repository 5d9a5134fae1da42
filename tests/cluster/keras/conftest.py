"""What the Keras tests have in common."""

import pytest

from tfps.variables import partitioners


@pytest.fixture(
  params=[None, partitioners.FixedShards(2)], ids=['whole', 'in shards']
)
def partitioner(request):
  """How a strategy cuts variables: each test runs both ways."""
  return request.param
