"""Workers that hold what is dense, as processes of their own."""

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
_PROGRAM = str(_ROOT / 'tests' / 'programs' / 'hybrid.py')


@pytest.fixture
def start(tmp_path):
  clusters = []

  def start(num_workers, how, optimizer, steps, **env):
    command = [sys.executable, _PROGRAM, how, optimizer, str(steps)]
    cluster = testing.ProcessCluster(
      num_workers,
      2,
      commands={'worker': [*command, str(tmp_path)]},
      env={'PYTHONPATH': str(_ROOT), **env},
      preload=['tensorflow', 'keras'],
    )
    clusters.append(cluster)
    return cluster.__enter__()

  yield start
  for cluster in clusters:
    cluster.stop()


def _finish(cluster):
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    status = cluster.wait(task.job, task.index, timeout_secs=120)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


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


@pytest.mark.parametrize(
  ('how', 'lose'), [('train', 'kill'), ('fit', 'freeze')]
)
def test_who_is_lost_is_named(start, how, lose):
  cluster = start(3, how, 'sgd', 100_000, TIMEOUT_SECS='15')
  waiting.until(lambda: cluster.log('worker', 0).count('\nat ') > 4)
  getattr(cluster, lose)('worker', 2)
  for index in range(2):
    assert cluster.wait('worker', index, timeout_secs=60) != 0
    # The other one may have ended by then, too.
    named = rf'worker:{index} cannot go on without (worker:\d, )?worker:2'
    assert re.search(named, cluster.log('worker', index))
  cluster.start('worker', 0)  # with ps that have their share of what was
  assert cluster.wait('worker', 0, timeout_secs=60) != 0
  assert 'have variables of workers that are gone' in cluster.log('worker', 0)


def test_who_does_fewer_steps_is_named(start):
  cluster = start(2, 'fit', 'sgd', 12, TIMEOUT_SECS='15', FEWER='4')
  assert cluster.wait('worker', 0, timeout_secs=60) != 0
  log = cluster.log('worker', 0)
  assert 'worker:0 and worker:1 have not come to the same step' in log
  assert 'do all workers have equally many batches?' in log
