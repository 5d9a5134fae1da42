"""With a recovery, a hybrid's workers outlast the loss of ps."""

import re
import time

import pytest

from tests.support import waiting

_TIMEOUT_SECS = 150.0


@pytest.fixture
def start(start_workers, tmp_path):
  return lambda how, steps, **env: start_workers(
    2, 'hybrid_survive.py', how, steps, tmp_path / 'cuts', **env
  )


def _numbers(cluster, index, what):
  """The last line of numbers of that kind in a worker's log."""
  lines = re.findall(rf'^{what} (.*)$', cluster.log('worker', index), re.M)
  return [float(word) for word in lines[-1].split()] if lines else []


def _wait_for_steps(cluster, number):
  for index in range(2):
    before = cluster.log('worker', index).count('\nat ')
    waiting.until(
      lambda index=index, before=before: (
        cluster.log('worker', index).count('\nat ') >= before + number
      ),
      timeout_secs=_TIMEOUT_SECS,
    )


def _lose(cluster, *tasks):
  for job, index in tasks:
    cluster.kill(job, index)
  time.sleep(0.3)
  for job, index in tasks:
    cluster.start(job, index)


def _finish(cluster):
  for index in range(2):
    status = cluster.wait('worker', index, timeout_secs=_TIMEOUT_SECS)
    assert status == 0, cluster.log('worker', index)[-3000:]


@pytest.mark.parametrize('lost', [1, 0])
@pytest.mark.parametrize('replicas', [0, 1])
@pytest.mark.parametrize('how', ['train', 'fit'])
def test_training_goes_on(start, how, replicas, lost):
  steps = 300
  cluster = start(how, steps, REPLICAS=str(replicas))
  _wait_for_steps(cluster, 20)
  _lose(cluster, ('ps', lost))
  _finish(cluster)
  for i in range(2):
    print(i, {w: _numbers(cluster, i, w) for w in ('held','there','steps','repeated','repaired')})
