"""Between graphs, a ps that is told to end hands over what it has."""

import re

import pytest

from tests.support import losses
from tests.support import waiting
from tfps import testing

_STEPS = 1_500


def training(folder, mode, steps, *flags):
  """Two workers that train for one another; no cut is made unless needed."""
  command = losses.campaign(mode, folder, steps)
  return testing.ProcessCluster(
    2,
    2,
    commands={'worker': (*command, '--every_secs=3600', *flags)},
    preload=['tensorflow', 'keras'],
  )


def reached(cluster, index):
  """The steps that a worker has reached, one after another."""
  log = cluster.log('worker', index)
  return [int(step) for step in re.findall(r'^at (\d+)', log, re.MULTILINE)]


def wait_for_steps(cluster, number=10):
  for index in range(2):
    before = len(reached(cluster, index))
    waiting.until(
      lambda i=index, n=before: len(reached(cluster, i)) >= n + number,
      timeout_secs=60,
    )


def hand_over(cluster, ps):
  cluster.terminate('ps', ps)
  assert cluster.wait('ps', ps, timeout_secs=30) == 143


def is_at(cluster, ps, address, worker):
  """Whether a worker has ps there by now."""
  found = re.findall(rf'ps:{ps} is at (\S+) now', cluster.log('worker', worker))
  return bool(found) and found[-1] == address


def test_ps_that_leave_and_come_home_lose_nothing(tmp_path):
  with training(tmp_path, 'between_graph', _STEPS) as cluster:
    for ps in (1,):
      home = cluster.cluster.address(cluster.cluster.tasks('ps')[ps])
      wait_for_steps(cluster)
      hand_over(cluster, ps)
      assert not is_at(cluster, ps, home, worker=0)
      wait_for_steps(cluster)
      cluster.start('ps', ps)
      for worker in range(2):
        waiting.until(
          lambda w=worker, p=ps, h=home: is_at(cluster, p, h, w),
          timeout_secs=30,
        )
    for job in ('worker', 'ps'):
      for index in range(2):
        assert cluster.wait(job, index, timeout_secs=120) == 0
    # Who has counted last has seen all that either did.
    least, most, step = max(
      losses.counted(cluster.log('worker', index)) for index in range(2)
    )
    assert least == most == step >= _STEPS
    for index in range(2):
      assert reached(cluster, index) == sorted(reached(cluster, index))
      assert 'is lost, or out of reach' not in cluster.log('worker', index)


@pytest.mark.exhaustive
def test_with_replicas_fit_does_not_notice(tmp_path):
  with training(
    tmp_path, 'between_graph_fit', 1_000, '--replicas=1'
  ) as cluster:
    wait_for_steps(cluster)
    hand_over(cluster, 1)
    for index in range(2):
      assert cluster.wait('worker', index, timeout_secs=120) == 0
      assert reached(cluster, index) == sorted(reached(cluster, index))
      assert 'is lost, or out of reach' not in cluster.log('worker', index)
    assert 'is back, with all it had.' in cluster.log('worker', 0)
