"""Keeps a large variable safe, with each task on a host of its own."""

import pathlib
import sys

import pytest

from tfps import testing
from tfps.testing.chaos import network

NUM_BYTES = 4_000_000
_PROGRAM = str(pathlib.Path(__file__).parents[1] / 'programs' / 'keep.py')

needs_network = pytest.mark.skipif(
  bool(network.problem()), reason=network.problem()
)


def keep(strategy, folder, times):
  """Runs the program; the traffic of the hosts of the chief and of two ps."""
  command = [
    *('env', '-C', str(folder), sys.executable, _PROGRAM),
    *(strategy, str(NUM_BYTES // 4), str(times)),
  ]
  with testing.ProcessCluster(
    1, 2, on_hosts=True, commands={'chief': command}
  ) as cluster:
    status = cluster.wait('chief', 0, timeout_secs=120)
    assert status == 0, cluster.log('chief', 0)
    chief = cluster.traffic('chief', 0)
    return chief, [cluster.traffic('ps', i) for i in range(2)]
