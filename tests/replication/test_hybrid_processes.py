"""Workers that hold what is dense, as processes of their own."""

import re

import numpy as np
import pytest

from tests import waiting
from tests.replication import small

pytestmark = pytest.mark.slow


@pytest.fixture
def start(start_workers, tmp_path):
  return lambda num_workers, how, optimizer, steps, **env: start_workers(
    num_workers, 'hybrid.py', how, optimizer, steps, tmp_path, **env
  )


def _finish(cluster):
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    status = cluster.wait(task.job, task.index, timeout_secs=120)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _wait_for(cluster, index, what, number=1):
  waiting.until(
    lambda: cluster.log('worker', index).count(what) >= number,
    timeout_secs=120,
  )


def _weights(folder, index):
  return list(np.load(folder / f'{index}.npz').values())


def _assert_like_one_process(folder, optimizer, steps, num_workers):
  wanted = small.alone(optimizer, steps, num_workers)
  first = _weights(folder, 0)
  for found, value in zip(first, wanted, strict=True):
    np.testing.assert_allclose(found, value, atol=1e-4)
  for index in range(1, num_workers):
    for own, found in zip(_weights(folder, index), first, strict=True):
      np.testing.assert_array_equal(own, found)


@pytest.mark.parametrize(
  ('choice', 'optimizer', 'num_workers'),
  [
    ('rule', 'adam', 3),
    ('all with the workers', 'sgd', 2),
    pytest.param('all on the ps', 'adamw', 2, marks=pytest.mark.exhaustive),
  ],
)
def test_fit_is_like_one_process_on_all_batches(
  start, tmp_path, choice, optimizer, num_workers
):
  cluster = start(num_workers, 'fit', optimizer, 14, CHOICE=choice)
  _finish(cluster)
  _assert_like_one_process(tmp_path, optimizer, 14, num_workers)
  log = cluster.log('worker', 0)
  assert 'iterations 14' in log
  if choice == 'rule':
    assert re.findall(r'^(\w+) +(ps|workers) ', log, re.M) == [
      ('embeddings', 'ps'),
      *[('kernel', 'workers'), ('bias', 'workers')] * 2,
    ]


def test_train_goes_on_from_a_checkpoint(start, tmp_path):
  epoch = small.NUM_EXAMPLES // (2 * small.SIZE)
  _finish(start(2, 'train', 'adamw', epoch))
  again = start(2, 'train', 'adamw', 2 * epoch)
  _finish(again)
  assert f'at {epoch}\n' in again.log('worker', 1)
  _assert_like_one_process(tmp_path, 'adamw', 2 * epoch, 2)
  without = start(2, 'train', 'adamw', 3 * epoch, UNBUILT='1')
  for index in range(2):
    assert without.wait('worker', index, timeout_secs=120) != 0
    assert 'has no slots yet at step 30' in without.log('worker', index)


@pytest.mark.parametrize('lost', [2, 0], ids=['worker', 'chief'])
def test_who_comes_back_gets_what_the_others_have(start, tmp_path, lost):
  cluster = start(3, 'train', 'adam', 600, SLOW='1')
  watches = 2 - lost
  _wait_for(cluster, watches, '\nat ', 5)
  cluster.kill('worker', lost)
  left = 'worker:1 adds up gradients with ' + f'worker:{watches}.'
  _wait_for(cluster, 1, left)
  cluster.start('worker', lost)
  everybody = f'worker:{lost} adds up gradients with worker'
  _wait_for(cluster, lost, everybody, 2)
  (tmp_path / 'go').touch()
  _finish(cluster)
  for index in range(3):
    log = cluster.log('worker', index)
    # Of the step at which it was lost, the ps may have made their part, and
    # twice if it was just then having them make it, which they count.
    steps = int(re.search(r'^iterations (\d+)$', log, re.M)[1])
    repeated = int(re.search(r'repeated=(\d+)\)$', log, re.M)[1])
    assert 0 <= 600 - steps <= 1 + repeated <= 2, log
    for own, found in zip(
      _weights(tmp_path, index), _weights(tmp_path, 1), strict=True
    ):
      np.testing.assert_array_equal(own, found)
  assert 'workers_lost=1' in cluster.log('worker', 1)


def test_who_is_frozen_is_done_without(start, tmp_path):
  cluster = start(3, 'fit', 'sgd', 400, SLOW='1', TIMEOUT_SECS='30')
  _wait_for(cluster, 0, '\nat ', 5)
  cluster.freeze('worker', 2)
  left = 'worker:0 adds up gradients with worker:1.'
  _wait_for(cluster, 0, left)
  cluster.thaw('worker', 2)
  again = 'worker:2 adds up gradients with worker:0, worker:1.'
  _wait_for(cluster, 2, again, 2)
  (tmp_path / 'go').touch()
  _finish(cluster)
  assert 'workers_lost=1' in cluster.log('worker', 0)


def test_who_does_fewer_steps_is_not_waited_for(start):
  cluster = start(2, 'fit', 'sgd', 12, FEWER='4')
  _finish(cluster)
  assert 'worker:0 adds up gradients with nobody.' in cluster.log('worker', 0)
  assert 'iterations 12' in cluster.log('worker', 0)
  assert 'iterations 8' in cluster.log('worker', 1)


def test_what_all_had_is_gone_with_them(start):
  cluster = start(2, 'train', 'sgd', 100_000)
  _wait_for(cluster, 0, '\nat ', 5)
  for index in range(2):
    cluster.kill('worker', index)
  cluster.start('worker', 0)  # with ps that have their share of what was
  assert cluster.wait('worker', 0, timeout_secs=60) != 0
  assert 'have variables of workers that are gone' in cluster.log('worker', 0)
