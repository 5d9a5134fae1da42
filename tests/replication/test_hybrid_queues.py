"""A queue of splits for workers that add up gradients, as processes."""

import numpy as np
import pytest

from tests import waiting
from tests.replication import small

pytestmark = pytest.mark.slow

_BATCH, _PER_EXECUTION = 5, 2


@pytest.fixture
def start(start_workers, tmp_path):
  return lambda num_workers, how, total, size, epochs, **env: start_workers(
    num_workers, 'hybrid_visit.py', how, total, size, epochs, tmp_path, **env
  )


def _finish(cluster):
  for task in cluster.cluster.tasks('worker'):
    status = cluster.wait(task.job, task.index, timeout_secs=120)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _kept(folder, num_workers):
  """What each worker has, of which all that is held is the same."""
  found = [dict(np.load(folder / f'{i}.npz')) for i in range(num_workers)]
  for other in found[1:]:
    for name, value in found[0].items():
      np.testing.assert_array_equal(other[name], value, name)
  return found[0]


def _wait_for(cluster, index, what, number=1):
  waiting.until(
    lambda: cluster.log('worker', index).count(what) >= number,
    timeout_secs=120,
  )


@pytest.mark.parametrize(
  ('how', 'num_workers'),
  [
    ('train', 3),
    ('fit', 2),
    pytest.param('train', 2, marks=pytest.mark.exhaustive),
    pytest.param('fit', 3, marks=pytest.mark.exhaustive),
  ],
)
def test_all_is_visited_once_in_updates_of_who_has_batches(
  start, tmp_path, how, num_workers
):
  total, size, epochs = 130, 30, 2
  cluster = start(num_workers, how, total, size, epochs)
  _finish(cluster)
  kept = _kept(tmp_path, num_workers)
  np.testing.assert_array_equal(kept['visits'], epochs)
  # Each batch has its share of an update, of the same workers everywhere.
  np.testing.assert_allclose(kept['held'], kept['there'], atol=1e-12)
  assert np.count_nonzero(kept['held']) == total // _BATCH
  assert kept['held'].sum() == pytest.approx(kept['updates'])
  assert kept['iterations'] == kept['updates']
  num_batches = epochs * total // _BATCH
  assert num_batches / num_workers <= kept['updates'] < num_batches
  for index in range(num_workers):
    log = cluster.log('worker', index)
    assert log.count(' adds up gradients with ') == 1, log


def test_with_one_split_fit_is_like_one_process(start, tmp_path):
  epochs = 2
  num_steps = epochs * small.NUM_EXAMPLES // small.SIZE
  _finish(start(2, 'model', small.NUM_EXAMPLES, small.NUM_EXAMPLES, epochs))
  kept = _kept(tmp_path, 2)
  wanted = small.alone('adam', num_steps, 1)
  for i, weight in enumerate(wanted):
    np.testing.assert_allclose(kept[str(i)], weight, atol=1e-4)


@pytest.mark.parametrize(
  ('how', 'num_steps'),
  [('train', 9), ('fit', 10)],  # Keras does whole executions
)
def test_steps_are_those_of_all_workers(start, tmp_path, how, num_steps):
  cluster = start(2, how, 100, 100, 1, STEPS='9')
  _finish(cluster)
  kept = _kept(tmp_path, 2)
  assert kept['first'] == num_steps
  assert kept['first_held'].sum() == num_steps
  assert kept['updates'] == kept['iterations'] == 20  # after another call
  np.testing.assert_array_equal(kept['visits'], 1)


@pytest.mark.parametrize(
  ('how', 'visitation'),
  [
    ('train', 'exactly_once'),
    ('fit', 'at_least_once'),
    pytest.param('fit', 'exactly_once', marks=pytest.mark.exhaustive),
  ],
)
def test_what_a_killed_worker_was_at_is_visited(
  start, tmp_path, how, visitation
):
  total, size = 3000, 60
  cluster = start(3, how, total, size, 1, SLOW='1', VISITATION=visitation)
  _wait_for(cluster, 0, '\nat ', 5)
  cluster.kill('worker', 2)
  _wait_for(cluster, 0, 'worker:0 adds up gradients with worker:1.')
  cluster.start('worker', 2)
  _wait_for(cluster, 2, 'worker:2 adds up gradients with worker', 2)
  (tmp_path / 'go').touch()
  _finish(cluster)
  _assert_nothing_is_left_out(_kept(tmp_path, 3), total, visitation, size)


@pytest.mark.exhaustive
def test_what_a_frozen_worker_was_at_is_visited(start, tmp_path):
  total, size = 3000, 60
  cluster = start(3, 'train', total, size, 1, SLOW='1', TIMEOUT_SECS='30')
  _wait_for(cluster, 0, '\nat ', 5)
  cluster.freeze('worker', 2)
  _wait_for(cluster, 0, 'worker:0 adds up gradients with worker:1.')
  cluster.thaw('worker', 2)
  again = 'worker:2 adds up gradients with worker:0, worker:1.'
  _wait_for(cluster, 2, again, 2)
  (tmp_path / 'go').touch()
  _finish(cluster)
  _assert_nothing_is_left_out(_kept(tmp_path, 3), total, 'exactly_once', size)


def _assert_nothing_is_left_out(kept, total, visitation, size):
  assert kept['visits'].min() == 1
  # At most all were cut short in what they were doing.
  again = {'exactly_once': _PER_EXECUTION * _BATCH, 'at_least_once': size}
  assert kept['visits'].sum() - total <= 3 * again[visitation]
  for name in ('held', 'there'):
    assert np.count_nonzero(kept[name]) == total // _BATCH
