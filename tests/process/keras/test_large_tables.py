"""Large tables are made where they are, on ps in processes of their own."""

import keras
import numpy as np
import pytest

from benchmarks import usage
import tfps
from tfps import testing
from tfps.variables import partitioners

_ROWS, _COLUMNS = 1_000_000, 32


def _table():
  keras.utils.set_random_seed(1)
  layer = keras.layers.Embedding(_ROWS, _COLUMNS)
  layer.build()
  return layer.embeddings


_SHARDS = partitioners.FixedShards(2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('make', 'cuts'),
  [
    (tfps.ParameterServerStrategy, [None, _SHARDS]),
    (tfps.BetweenGraphStrategy, [_SHARDS]),
  ],
  ids=['coordinator', 'between graphs'],
)
def test_a_large_table_with_slots_costs_little_traffic(make, cuts):
  expected = _table().numpy()[[0, 1, _ROWS - 1]]
  with testing.ProcessCluster(num_workers=1, num_ps=2) as processes:
    cluster = processes.cluster
    addresses = map(cluster.address, cluster.tasks())
    ports = [int(address.rpartition(':')[2]) for address in addresses]
    for cut in cuts:
      strategy = make(cluster, cut)
      before = usage.bytes_at_ports(ports)
      with strategy.scope():
        table = _table()
        optimizer = keras.optimizers.Adam()
        optimizer.build([table])
      assert 0 < usage.bytes_at_ports(ports) - before < 1_000_000
      assert sum(strategy.placement_report().num_bytes) > 3 * 4 * 32_000_000
      found = keras.ops.take(table, [0, 1, _ROWS - 1], axis=0)
      np.testing.assert_array_equal(found, expected)
