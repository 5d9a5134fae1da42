"""Workers of a host that push one gradient for all of them, as processes."""

import itertools
import pathlib
import re
import sys

import numpy as np
import pytest

from tests import waiting
from tests.replication import small
from tfps import testing

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = str(_ROOT / 'tests' / 'programs' / 'by_host.py')
_STEPS = 6


@pytest.fixture
def start():
  clusters = []

  def start(hosts, what, argument, **env):
    cluster = testing.ProcessCluster(
      len(hosts),
      2,
      commands={'worker': [sys.executable, _PROGRAM, what, str(argument)]},
      env={'PYTHONPATH': str(_ROOT), 'HOSTS': hosts, **env},
      preload=['tensorflow', 'keras'],
    )
    clusters.append(cluster)
    return cluster.__enter__()

  yield start
  for cluster in clusters:
    cluster.stop()


def _finish(cluster):
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    status = cluster.wait(task.job, task.index, timeout_secs=200)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _found(cluster, index, name):
  return re.findall(rf'^{name} (.+)', cluster.log('worker', index), re.M)


def test_fit_is_like_one_process_and_each_host_pushes_once(start, tmp_path):
  cluster = start('001', 'learn', tmp_path)
  _finish(cluster)
  assert _found(cluster, 0, 'updates') == [f'{2 * _STEPS} 0 0']
  for name in ('sgd', 'adam'):
    wanted = small.alone(name, _STEPS, 3)
    found = np.load(tmp_path / f'{name}.npz').values()
    for own, value in zip(found, wanted, strict=True):
      np.testing.assert_allclose(own, value, atol=1e-4)
  pushed = [
    [int(line.split()[1]) for line in _found(cluster, index, 'pushed')]
    for index in range(3)
  ]
  print(pushed)
