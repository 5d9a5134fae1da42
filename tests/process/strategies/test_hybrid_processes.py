"""Workers that hold what is dense, as processes of their own."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.support import small
from tests.support import waiting
import tfps
from tfps import testing

_TIMEOUT_SECS = 240.0


@pytest.fixture
def start(start_workers, tmp_path):
  return lambda num_workers, how, optimizer, steps, **env: start_workers(
    num_workers, 'hybrid.py', how, optimizer, steps, tmp_path, **env
  )


def _finish(cluster):
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    status = cluster.wait(task.job, task.index, timeout_secs=_TIMEOUT_SECS)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _wait_for(cluster, index, what, number=1):
  waiting.until(
    lambda: cluster.log('worker', index).count(what) >= number,
    timeout_secs=_TIMEOUT_SECS,
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


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('choice', 'optimizer', 'num_workers'),
  [
    ('rule', 'adam', 3),
    ('all with the workers', 'sgd', 2),
    ('all on the ps', 'adamw', 2),
  ],
)
def test_fit_is_like_one_process_on_all_batches(
  start, tmp_path, choice, optimizer, num_workers
):
  cluster = start(num_workers, 'fit', optimizer, 14, CHOICE=choice)
  _finish(cluster)
  _assert_like_one_process(tmp_path, optimizer, 14, num_workers)
  assert 'iterations 14' in cluster.log('worker', 0)


@pytest.mark.exhaustive
def test_training_outlasts_workers_and_goes_on_from_a_checkpoint(
  start, tmp_path
):
  epoch, steps = small.NUM_EXAMPLES // (3 * small.SIZE), 200
  cluster = start(3, 'train', 'adamw', steps, SLOW='1', KEEP=str(epoch))
  _wait_for(cluster, 2, f'\nat {epoch + 4}\n')

  cluster.kill('worker', 0)
  _wait_for(cluster, 1, 'worker:1 adds up gradients with worker:2.')
  cluster.start('worker', 0)
  back = 'worker:0 adds up gradients with worker:1, worker:2.'
  _wait_for(cluster, 0, back, 2)

  cluster.freeze('worker', 2)
  _wait_for(cluster, 0, 'worker:0 adds up gradients with worker:1.')
  cluster.thaw('worker', 2)
  back = 'worker:2 adds up gradients with worker:0, worker:1.'
  _wait_for(cluster, 2, back, 3)

  (tmp_path / 'go').touch()
  _finish(cluster)
  _assert_all_have_the_same(cluster, tmp_path, steps, num_lost=2)
  assert re.findall(
    r'^(\w+) +(ps|workers) ', cluster.log('worker', 1), re.M
  ) == [
    ('embeddings', 'ps'),
    *[('kernel', 'workers'), ('bias', 'workers')] * 2,
  ]

  _goes_on_like_one_process(tmp_path / 'kept', epoch)


def _goes_on_like_one_process(folder, epoch):
  """Has one worker go on from the first epoch of all three."""
  more = 8
  with testing.InProcessCluster(num_workers=1, num_ps=2) as cluster:
    strategy = tfps.replication.HybridStrategy(cluster.cluster)
    with strategy.scope():
      model = small.model('adamw')
      model.optimizer.build(model.trainable_variables)
    result = strategy.train(
      small.step_of(model),
      lambda context: small.dataset(context).repeat(),
      steps=epoch + more,
      steps_per_execution=2,
      checkpoint=tf.train.Checkpoint(model=model),
      checkpoint_dir=str(folder),
    )
    assert result.steps == more
    found = model.get_weights()
  wanted = small.alone('adamw', epoch, 3, then=more)
  for own, weight in zip(found, wanted, strict=True):
    np.testing.assert_allclose(own, weight, atol=1e-4)


def _assert_all_have_the_same(cluster, folder, steps, num_lost):
  for index in range(3):
    log = cluster.log('worker', index)
    # Of the step at which one was lost, the ps may have made their part, and
    # twice if it was just then having them make it, which they count.
    done = int(re.search(r'^iterations (\d+)$', log, re.M)[1])
    repeated = int(re.search(r'repeated=(\d+)\)$', log, re.M)[1])
    assert 0 <= steps - done <= num_lost + repeated <= 2 * num_lost, log
    for own, found in zip(
      _weights(folder, index), _weights(folder, 1), strict=True
    ):
      np.testing.assert_array_equal(own, found)
  assert f'workers_lost={num_lost}' in cluster.log('worker', 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize('lost', [2, 0], ids=['worker', 'chief'])
def test_who_comes_back_gets_what_the_others_have(start, tmp_path, lost):
  cluster = start(3, 'train', 'adam', 200, SLOW='1')
  watches = 2 - lost
  _wait_for(cluster, watches, '\nat ', 5)
  cluster.kill('worker', lost)
  _wait_for(cluster, 1, f'worker:1 adds up gradients with worker:{watches}.')
  cluster.start('worker', lost)
  _wait_for(cluster, lost, f'worker:{lost} adds up gradients with worker', 2)
  (tmp_path / 'go').touch()
  _finish(cluster)
  _assert_all_have_the_same(cluster, tmp_path, 200, num_lost=1)


@pytest.mark.exhaustive
def test_who_does_fewer_steps_is_not_waited_for(start):
  cluster = start(2, 'fit', 'sgd', 12, FEWER='4')
  _finish(cluster)
  assert 'worker:0 adds up gradients with nobody.' in cluster.log('worker', 0)
  assert 'iterations 12' in cluster.log('worker', 0)
  assert 'iterations 8' in cluster.log('worker', 1)
