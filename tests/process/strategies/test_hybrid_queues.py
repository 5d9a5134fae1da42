"""A queue of splits for workers that add up gradients, as processes."""

import numpy as np
import pytest

from tests.support import small
from tests.support import starting
from tests.support import visits
from tests.support import waiting

_TIMEOUT_SECS = 240.0


def _start(folder, num_workers, *names, **env):
  return starting.workers(
    num_workers, 'hybrid_visit.py', folder, *names, SLOW='0', **env
  )


def _finish(cluster):
  for task in cluster.cluster.tasks('worker'):
    status = cluster.wait(task.job, task.index, timeout_secs=_TIMEOUT_SECS)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _kept(folder, name, num_workers):
  """What each worker has, of which all that is held is the same."""
  found = [
    dict(np.load(folder / f'{name}-{i}.npz')) for i in range(num_workers)
  ]
  for other in found[1:]:
    for name, value in found[0].items():
      np.testing.assert_array_equal(other[name], value, name)
  return found[0]


def _wait_for(cluster, index, what, number=1):
  waiting.until(
    lambda: cluster.log('worker', index).count(what) >= number,
    timeout_secs=_TIMEOUT_SECS,
  )


def _lose(cluster, folder, lost, fault):
  """Has a worker be lost in a slow case, and come back; then all finish."""
  others = {0, 1, 2} & set(range(len(cluster.cluster.tasks('worker')))) - {lost}
  left = ', '.join(f'worker:{i}' for i in sorted(others - {0})) or 'nobody'
  back = ', '.join(f'worker:{i}' for i in sorted(others))
  _wait_for(cluster, 0, '\nat ', 3)
  ways = {'kill': ('kill', 'start'), 'freeze': ('freeze', 'thaw')}
  lose, bring_back = ways[fault]
  getattr(cluster, lose)('worker', lost)
  _wait_for(cluster, 0, f'worker:0 adds up gradients with {left}.')
  getattr(cluster, bring_back)('worker', lost)
  _wait_for(cluster, lost, f'worker:{lost} adds up gradients with {back}.', 2)
  (folder / 'go').touch()
  _finish(cluster)


def _assert_each_was_visited_in_each_epoch(kept, name, num_workers):
  case = visits.CASES[name]
  np.testing.assert_array_equal(kept['visits'], case.epochs)
  # Each batch has its share of an update, of the same workers everywhere.
  np.testing.assert_allclose(kept['held'], kept['there'], atol=1e-12)
  num_batches = case.total // visits.BATCH
  assert np.count_nonzero(kept['held']) == num_batches
  assert kept['held'].sum() == pytest.approx(kept['updates'])
  assert kept['iterations'] == kept['updates']
  least = case.epochs * num_batches / num_workers
  assert least <= kept['updates'] < case.epochs * num_batches


def _assert_steps_were_those_of_all(kept, num_steps):
  assert kept['first'] == num_steps
  assert kept['first_held'].sum() == num_steps
  assert kept['updates'] == kept['iterations'] == 20  # after another call
  np.testing.assert_array_equal(kept['visits'], 1)


def _assert_nothing_is_left_out(kept, name):
  case = visits.CASES[name]
  assert kept['visits'].min() == 1
  # At most all were cut short in what they were doing.
  again = {
    'exactly_once': visits.PER_EXECUTION * visits.BATCH,
    'at_least_once': case.size,
  }
  assert kept['visits'].sum() - case.total <= 3 * again[case.visitation]
  for name in ('held', 'there'):
    assert np.count_nonzero(kept[name]) == case.total // visits.BATCH


@pytest.mark.exhaustive
def test_all_is_visited_once_in_updates_of_who_has_batches(tmp_path):
  with _start(tmp_path, 2, 'train') as cluster:
    _finish(cluster)
    logs = [cluster.log('worker', index) for index in range(2)]
  kept = _kept(tmp_path, 'train', 2)
  _assert_each_was_visited_in_each_epoch(kept, 'train', 2)
  for log in logs:
    assert log.count(' adds up gradients with ') == 1, log


@pytest.mark.exhaustive
def test_fit_counts_the_steps_of_all_workers(tmp_path):
  with _start(tmp_path, 2, 'fit in two calls', 'model') as cluster:
    _finish(cluster)
  # Keras does whole executions.
  _assert_steps_were_those_of_all(_kept(tmp_path, 'fit in two calls', 2), 10)
  # With one split it is like one process.
  kept = _kept(tmp_path, 'model', 2)
  num_steps = 2 * small.NUM_EXAMPLES // small.SIZE
  for i, weight in enumerate(small.alone('adam', num_steps, 1)):
    np.testing.assert_allclose(kept[str(i)], weight, atol=1e-4)


@pytest.mark.exhaustive
def test_three_workers_visit_all_in_every_way(tmp_path):
  names = ('train', 'fit', 'train in two calls')
  with _start(tmp_path, 3, *names) as cluster:
    _finish(cluster)
  for name in names[:2]:
    kept = _kept(tmp_path, name, 3)
    _assert_each_was_visited_in_each_epoch(kept, name, 3)
  _assert_steps_were_those_of_all(_kept(tmp_path, names[2], 3), 9)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'name', ['slow train', 'slow fit', 'slow fit, at least once']
)
def test_what_a_killed_worker_was_at_is_visited(tmp_path, name):
  with _start(tmp_path, 3, name) as cluster:
    _lose(cluster, tmp_path, 2, 'kill')
  _assert_nothing_is_left_out(_kept(tmp_path, name, 3), name)


@pytest.mark.exhaustive
def test_what_a_frozen_worker_was_at_is_visited(tmp_path):
  with _start(tmp_path, 3, 'slow train', TIMEOUT_SECS='30') as cluster:
    _lose(cluster, tmp_path, 2, 'freeze')
  kept = _kept(tmp_path, 'slow train', 3)
  _assert_nothing_is_left_out(kept, 'slow train')
