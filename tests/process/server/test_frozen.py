"""Calls to a task that is frozen fail, as gRPC's pings are not answered."""

import pathlib

import pytest

from tests.support import commands

_PROGRAMS = pathlib.Path(__file__).parents[2] / 'programs'


# A program of its own: TensorFlow reads gRPC's options once, and this process
# has them already.
@pytest.mark.tfps_cluster(workers=1, ps=1, processes=True)
@pytest.mark.parametrize(
  'strategy',
  [
    'ParameterServerStrategy',
    pytest.param('BetweenGraphStrategy', marks=pytest.mark.exhaustive),
  ],
)
def test_a_call_to_a_frozen_ps_fails(tfps_cluster, monkeypatch, strategy):
  monkeypatch.delenv('TF_GRPC_DEFAULT_OPTIONS', raising=False)
  try:
    done = commands.run(
      _PROGRAMS / 'frozen_ps.py',
      strategy,
      tfps_cluster.pid('ps', 0),
      timeout_secs=60,
      TF_CONFIG=tfps_cluster.cluster.tf_config(),
    )
  finally:
    tfps_cluster.thaw('ps', 0)
  assert 'ping timeout' in done.output, done.output
