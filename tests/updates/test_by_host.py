"""Workers of a host that push one gradient for all of them, as processes."""

import itertools
import json
import pathlib
import re
import sys

import numpy as np
import pytest

from tests import waiting
from tests.programs import by_host
from tests.replication import small
from tfps import testing
from tfps.hosts import groups
from tfps.testing.chaos import network

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = str(_ROOT / 'tests' / 'programs' / 'by_host.py')
_STEPS = 6


@pytest.fixture
def start(start_workers):
  return lambda hosts, *args: start_workers(
    len(hosts), 'by_host.py', *args, HOSTS=hosts
  )


def _finish(cluster):
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    status = cluster.wait(task.job, task.index, timeout_secs=200)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _found(cluster, index, name):
  return re.findall(rf'^{name} (.+)\n', cluster.log('worker', index), re.M)


def test_fit_is_like_one_process_and_each_host_pushes_once(start, tmp_path):
  cluster = start('001', 'learn', str(tmp_path))
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
  # Worker 1 has nothing to push but the numbers of the rows that it reads; the
  # rows of both are more than those of one.
  for together, none, alone in zip(*pushed, strict=True):
    assert none < 0.3 * alone < 0.3 * together


_PROBLEM = network.problem()


@pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)
def test_the_link_of_a_host_carries_one_gradient(tmp_path):
  num_workers = 3
  with testing.Network(2) as hosts:
    tasks = {
      'ps': [f'{hosts.address(0)}:2222'],
      'worker': [f'{hosts.address(1)}:{2222 + i}' for i in range(num_workers)],
    }

    def start(host, job, index, *command):
      config = {'cluster': tasks, 'task': {'type': job, 'index': index}}
      env = {'PYTHONPATH': str(_ROOT), 'TF_CONFIG': json.dumps(config)}
      with (tmp_path / f'{job}-{index}').open('wb') as log:
        command = [sys.executable, *command]
        return hosts.popen(host, command, env, stdout=log)

    start(0, 'ps', 0, '-m', 'tfps.server')
    for process in [
      start(1, 'worker', i, _PROGRAM, 'count') for i in range(num_workers)
    ]:
      assert process.wait(200) == 0
  log = (tmp_path / 'worker-0').read_text()
  ((sent, received),) = re.findall(r'^sent and received (\d+) (\d+)', log, re.M)
  num_bytes = 4 * by_host.COUNTED
  # With what else they tell the ps, and what they acknowledge.
  assert num_bytes < int(sent) < 1.6 * num_bytes
  assert num_workers * num_bytes < int(received)


# Of the means of some workers' gradients, each of which is in it once.
_MEANS = {
  np.mean(some)
  for number in range(1, 4)
  for some in itertools.combinations([1.0, 4.0, 16.0], number)
}
_VECTOR = np.array([4.0, 3.0, 2.0, 1.0])


def _values(cluster):
  """What worker 0 has seen after each of its steps."""
  lines = _found(cluster, 0, 'at')
  return np.array([list(map(float, line.split())) for line in lines])


def _goes_on(cluster, index):
  """Waits for some steps of a worker."""
  begun = len(_found(cluster, index, 'at'))
  waiting.until(
    lambda: len(_found(cluster, index, 'at')) > begun + 5, timeout_secs=120
  )


def _goes_on_with_all(cluster):
  """Waits until an update is made of the gradients of all."""
  begun = len(_values(cluster))

  def is_made():
    made = -np.diff(_values(cluster)[begun:, 0])
    return np.any(np.isclose(made, 7.0))

  waiting.until(is_made, timeout_secs=120)


def test_workers_of_a_host_are_lost_and_come_back(start):
  cluster = start('011', 'train')
  _goes_on(cluster, 2)
  for lost, other in ((1, 2), (2, 1)):  # 1 pushes what both have
    cluster.kill('worker', lost)
    _goes_on(cluster, other)
    cluster.start('worker', lost)
    _goes_on_with_all(cluster)
    cluster.freeze('worker', lost)
    _goes_on(cluster, other)
    cluster.thaw('worker', lost)
    _goes_on_with_all(cluster)
  waiting.until(lambda: len(_values(cluster)) > 100, timeout_secs=120)
  values = _values(cluster)
  made = [round(step, 6) for step in -np.diff(values[:, 0])]
  assert {round(mean, 6) for mean in _MEANS} >= set(made)
  # What a codec has kept was sent later, but for what died with two workers.
  left = np.abs(values[-1, 1:] + len(values) * _VECTOR)
  assert left.max() < 50
  job = f'@tfps/{groups.job_of(cluster.cluster)}/'
  assert job in _sockets()
  cluster.stop()  # which kills all
  waiting.until(lambda: job not in _sockets())
  assert not list(pathlib.Path('/dev/shm').glob('*tfps*'))


def _sockets():
  return pathlib.Path('/proc/net/unix').read_text()
