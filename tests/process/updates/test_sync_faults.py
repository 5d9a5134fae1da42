"""Workers that wait for each other, of whom some die, freeze and come back."""

import concurrent.futures
import pathlib
import re
import sys
import time

import pytest

from tests.support import ones as ones_lib
from tests.support import turns
from tests.support import waiting
import tfps
from tfps import testing

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'meet.py'


@pytest.fixture(scope='module')
def processes():
  with testing.ProcessCluster(num_workers=3, num_ps=1) as processes:
    yield processes


def _makes_whole_updates(strategy):
  """Whether those of the next moment are of all workers' gradients."""
  before = strategy.updates_report()
  time.sleep(0.5)
  after = strategy.updates_report()
  return after.updates > before.updates and after.short == before.short


@pytest.mark.exhaustive
def test_the_coordinators_updates_go_on_without_who_is_gone(processes):
  strategy = tfps.ParameterServerStrategy(
    processes.cluster, updates=tfps.updates.Sync(timeout_secs=2)
  )
  ones = ones_lib.Ones(strategy)
  coordinator = tfps.Coordinator(strategy, timeout_secs=100)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    future = pool.submit(ones.train, coordinator)
    ones_lib.wait_for_steps(ones)
    processes.kill('worker', 1)
    ones_lib.wait_for_steps(ones)
    assert strategy.updates_report().short > 0
    processes.start('worker', 1)
    waiting.until(lambda: _makes_whole_updates(strategy), timeout_secs=60)
    processes.freeze('worker', 2)
    ones_lib.wait_for_steps(ones)
    processes.thaw('worker', 2)
    waiting.until(lambda: _makes_whole_updates(strategy), timeout_secs=60)
    ones.is_to_end.set()
    with pytest.raises(ones_lib.EnoughError):
      future.result(100)
    coordinator.join()
  report = strategy.updates_report()
  assert report.updates > 60
  # A worker that is lost between its update and the count of it has another
  # worker make it again.
  number = -float(ones.number.numpy())
  assert report.updates <= number <= report.updates + report.repeated
  strategy.close()


@pytest.mark.parametrize('replicas', turns.rarely([0, 1], but=[0]))
def test_a_lost_ps_leaves_whole_updates(request, tmp_path, replicas):
  # The first one has the state of who waits for whom.
  num_lost = 2 if request.config.getoption('--exhaustive') else 1
  with testing.ProcessCluster(
    num_workers=2, num_ps=2, preload=['tensorflow']
  ) as cluster:
    strategy = tfps.ParameterServerStrategy(
      cluster.cluster,
      updates=tfps.updates.Sync(),
      recovery=tfps.Recovery(tmp_path, every_secs=0.5, replicas=replicas),
    )
    ones, other = ones_lib.Ones(strategy), ones_lib.Ones(strategy)

    def step(batch):
      ones.step(batch)
      other.step(batch)

    with tfps.Coordinator(strategy, timeout_secs=100) as coordinator:
      ones.step_fn = step
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(ones.train, coordinator)
        ones_lib.wait_for_steps(ones, 6)
        for ps in range(num_lost):
          cluster.kill('ps', ps)
          cluster.start('ps', ps)
          ones_lib.wait_for_steps(ones, 6)
        ones.is_to_end.set()
        with pytest.raises(ones_lib.EnoughError):
          future.result(100)
      coordinator.join()
      # Where a replica goes on in the midst of a step, whose first update was
      # made, the second may not be.
      num_cut_short = 2 if replicas else 0
      step = int(coordinator.global_step.numpy())
      for each, least in ((ones, step), (other, step - num_cut_short)):
        assert least <= -float(each.number.numpy()) <= step
        assert int(each.optimizer.iterations) == -float(each.number.numpy())


def _found(cluster, name):
  """What the workers say under a name, by worker."""
  return [
    re.findall(rf'^{name} (\S+)', cluster.log('worker', index), re.M)
    for index in range(cluster.cluster.num_workers)
  ]


@pytest.mark.exhaustive
def test_between_graphs_updates_go_on_without_who_is_gone_or_done(tmp_path):
  slowly = tmp_path / 'slowly'
  command = [sys.executable, str(_PROGRAM), 'Sync', '300', str(slowly)]
  with testing.ProcessCluster(
    3, 2, commands={'worker': command}, preload=['tensorflow', 'keras']
  ) as cluster:
    waiting.until(lambda: len(_found(cluster, 'at')[1]) > 5, timeout_secs=150)
    slowly.touch()  # so that the worker is back long before the others end
    cluster.kill('worker', 1)
    seen = len(_found(cluster, 'at')[0])
    waiting.until(
      lambda: len(_found(cluster, 'at')[0]) > seen + 5, timeout_secs=60
    )
    cluster.start('worker', 1)
    waiting.until(lambda: _found(cluster, 'at')[1])
    slowly.unlink()
    for task in cluster.cluster.tasks('worker'):
      status = cluster.wait(task.job, task.index, timeout_secs=200)
      assert status == 0, cluster.log(task.job, task.index)[-3000:]
    numbers, iterations = (_found(cluster, n) for n in ('number', 'iterations'))
    assert [float(own[0]) for own in numbers] == [-300.0] * 3
    assert [int(own[0]) for own in iterations] == [300] * 3
    short = [int(number) for number in _found(cluster, 'short')[0]]
    assert 0 < short[0] < 300
    # Of the last updates of `fit`, four are of two gradients, and four of one.
    assert float(numbers[0][1]) == -40
    assert int(iterations[0][1]) == 40
    assert short[1] - short[0] == 8
