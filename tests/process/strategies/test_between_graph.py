"""Workers that each run their own program, as processes that come and go."""

import pathlib
import re
import sys

import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps import errors
from tfps import testing

_PROGRAMS = pathlib.Path(__file__).parents[2] / 'programs'


def _cluster(
  num_workers: int, num_ps: int, program: str, *args: str, **kwargs
) -> testing.ProcessCluster:
  command = [sys.executable, str(_PROGRAMS / program), *args]
  return testing.ProcessCluster(
    num_workers,
    num_ps,
    commands={'worker': command},
    preload=['tensorflow', 'keras'],
    **kwargs,
  )


def _finish(cluster: testing.ProcessCluster) -> None:
  """Every worker is done, and then every ps."""
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    status = cluster.wait(task.job, task.index, timeout_secs=200)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _numbers(cluster: testing.ProcessCluster, index: int, what: str) -> list:
  found = re.findall(rf'^{what} (\S+)', cluster.log('worker', index), re.M)
  return [float(number) for number in found]


@pytest.mark.exhaustive
def test_four_workers_count_exactly():
  with _cluster(4, 1, 'count.py', '1000') as cluster:
    _finish(cluster)
    for index in range(4):
      assert f'worker:{index} count 4000' in cluster.log('worker', index)
      assert f'worker:{index} total 400 400' in cluster.log('worker', index)


@pytest.mark.exhaustive
def test_processes_find_each_others_keys():
  with _cluster(3, 2, 'keyed.py', '40') as cluster:
    _finish(cluster)
    for index in range(3):
      assert f'worker:{index} has 2000 -6000\n' in cluster.log('worker', index)


def test_who_is_late_or_joins_attaches_and_is_waited_for_and_all_steps_count():
  with _cluster(2, 2, 'fit.py', '300', held_back=['worker:1']) as cluster:
    waiting.until(lambda: _numbers(cluster, 0, 'at'))
    cluster.freeze('worker', 0)  # else it may do all before they are there
    cluster.start('worker', 1)
    cluster.add_worker()
    waiting.until(
      lambda: all(_numbers(cluster, index, 'at') for index in (1, 2))
    )
    cluster.thaw('worker', 0)
    _finish(cluster)  # after the barrier at the end
    assert 'attached False' in cluster.log('worker', 0)
    own = [_numbers(cluster, index, 'own steps') for index in range(3)]
    for index in range(3):
      assert _numbers(cluster, index, 'iterations') == [sum(map(sum, own))]
      assert min(own[index]) > 0
    for index in (1, 2):
      assert 'attached True' in cluster.log('worker', index)
      assert _numbers(cluster, 0, 'kernel') == _numbers(
        cluster, index, 'kernel'
      )


@pytest.mark.exhaustive
def test_workers_die_and_come_back_to_the_live_values():
  with _cluster(2, 2, 'fit.py', '700') as cluster:
    waiting.until(
      lambda: all(len(_numbers(cluster, i, 'at')) > 5 for i in range(2)),
      timeout_secs=150,
    )
    cluster.kill('worker', 0)  # the chief
    before = _numbers(cluster, 0, 'at')
    seen = len(_numbers(cluster, 1, 'at'))
    waiting.until(lambda: len(_numbers(cluster, 1, 'at')) > seen + 5)
    cluster.freeze('worker', 1)  # else it may do all before the chief is back
    cluster.start('worker', 0)
    waiting.until(
      lambda: len(_numbers(cluster, 0, 'at')) > len(before), timeout_secs=150
    )
    cluster.thaw('worker', 1)
    _finish(cluster)
    log = cluster.log('worker', 0)
    assert re.findall(r'attached (\w+)', log) == ['False', 'True']
    after = _numbers(cluster, 0, 'at')[len(before) :]
    assert after[0] > before[-1]
    assert _numbers(cluster, 0, 'iterations')[-1] >= 700
    assert _numbers(cluster, 0, 'kernel') == _numbers(cluster, 1, 'kernel')


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=1, ps=2, processes=True)
def test_an_execution_that_takes_too_long_names_the_frozen_ps(tfps_cluster):
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    counts = [tf.Variable(0, name=name) for name in 'ab']

  def step(batch):
    for count in counts:
      count.assign_add(batch)

  def freeze(progress):
    if progress.step == 10:
      tfps_cluster.freeze('ps', 1)

  with pytest.raises(
    errors.DeadlineError, match=r'5 seconds: ps:1 .*not answer'
  ):
    strategy.train(
      step,
      lambda _: tf.data.Dataset.from_tensors(1).repeat(),
      steps=100,
      steps_per_execution=5,
      hooks=[freeze],
      timeout_secs=5,
    )
  tfps_cluster.thaw('ps', 1)
  strategy.close()
