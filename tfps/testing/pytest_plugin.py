"""Pytest fixture that provides a cluster, kept for all tests of a module.

```
@pytest.mark.tfps_cluster(workers=2, ps=2)
def test_counts(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
```

With `processes=True` the cluster is a `ProcessCluster`, whose tasks tests may
kill; otherwise an `InProcessCluster`. Before each test, tasks that have ended
are restarted, frozen ones thawed, and variables in this process dropped.
"""

from collections.abc import Iterator
import dataclasses
import os
from typing import Any

import pytest

from tfps import testing
from tfps.server import environment


@dataclasses.dataclass(frozen=True)
class _Shape:
  """Arguments of the marker."""

  workers: int = 1
  ps: int = 1
  processes: bool = False
  devices_per_worker: int = 1


def pytest_configure(config: pytest.Config) -> None:
  """Registers the marker, and allows servers enough threads."""
  # TensorFlow reads it once, maybe before the first cluster is made.
  os.environ.setdefault(
    environment.THREADS_VARIABLE, str(environment.ENOUGH_THREADS)
  )
  config.addinivalue_line(
    'markers',
    'tfps_cluster(workers=1, ps=1, processes=False, devices_per_worker=1): the '
    'cluster that the fixture tfps_cluster provides to this test.',
  )


@pytest.fixture(scope='module')
def _tfps_clusters() -> Iterator[dict[_Shape, Any]]:
  """Provides the module's clusters, each made when it is first used."""
  clusters: dict[_Shape, Any] = {}
  yield clusters
  for cluster in clusters.values():
    cluster.stop()


@pytest.fixture
def tfps_cluster(
  request: pytest.FixtureRequest, _tfps_clusters: dict[_Shape, Any]
) -> Any:
  """Provides an `InProcessCluster` or `ProcessCluster` as the marker says."""
  shape = _shape(request)
  if shape in _tfps_clusters:
    _tfps_clusters[shape].heal()
  else:
    _tfps_clusters[shape] = _start(shape)
  return _tfps_clusters[shape]


def _shape(request: pytest.FixtureRequest) -> _Shape:
  marker = request.node.get_closest_marker('tfps_cluster')
  if marker is None:
    return _Shape()
  try:
    shape = _Shape(*marker.args, **marker.kwargs)
    if shape.processes and shape.devices_per_worker > 1:
      raise TypeError(
        f'devices_per_worker={shape.devices_per_worker} is for clusters in '
        'this process: leave out processes'
      )
    return shape
  except TypeError as error:
    raise pytest.UsageError(
      f'{request.node.nodeid}: marker tfps_cluster: {error}. '
      'It takes workers, ps, processes and devices_per_worker.'
    ) from error


def _start(shape: _Shape) -> Any:
  cluster: Any
  if shape.processes:
    cluster = testing.ProcessCluster(shape.workers, shape.ps)
  else:
    cluster = testing.InProcessCluster(
      shape.workers, shape.ps, devices_per_worker=shape.devices_per_worker
    )
  return cluster.__enter__()
