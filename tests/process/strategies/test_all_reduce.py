"""Workers that add up gradients among themselves, as processes."""

import json
import re

import numpy as np
import pytest

from tests.support import small
from tests.support import waiting

_TIMEOUT_SECS = 240.0
_IS_IN = ' adds up gradients with '  # a group


@pytest.fixture
def start(start_workers, tmp_path):
  return lambda num_workers, how, optimizer, steps, **env: start_workers(
    num_workers,
    'all_reduce.py',
    how,
    optimizer,
    steps,
    tmp_path,
    num_ps=0,
    **env,
  )


def _finish(cluster):
  for task in cluster.cluster.tasks('worker'):
    status = cluster.wait(task.job, task.index, timeout_secs=_TIMEOUT_SECS)
    assert status == 0, f'{task}: {_logs(cluster)}'


def _logs(cluster):
  tasks = cluster.cluster.tasks('worker')
  return '\n'.join(
    f'== {task}\n{cluster.log(task.job, task.index)[-2500:]}' for task in tasks
  )


def _wait_for(cluster, index, what, number=1):
  waiting.until(
    lambda: cluster.log('worker', index).count(what) >= number,
    timeout_secs=_TIMEOUT_SECS,
    say=lambda: _logs(cluster),
  )


def _weights(folder, index):
  return list(np.load(folder / f'{index}.npz').values())


def _assert_equal(folder, num_workers):
  first = _weights(folder, 0)
  for index in range(1, num_workers):
    for own, found in zip(_weights(folder, index), first, strict=True):
      np.testing.assert_array_equal(own, found)


def _assert_like_one_process(folder, optimizer, steps, num_workers):
  wanted = small.alone(optimizer, steps, num_workers)
  for found, value in zip(_weights(folder, 0), wanted, strict=True):
    np.testing.assert_allclose(found, value, atol=1e-4)
  _assert_equal(folder, num_workers)


@pytest.mark.parametrize(
  ('how', 'optimizer', 'num_workers'),
  [
    ('fit', 'adamw', 2),
    pytest.param('fit', 'sgd', 3, marks=pytest.mark.exhaustive),
    pytest.param('train', 'adam', 3, marks=pytest.mark.exhaustive),
    pytest.param('loop', 'adamw', 2, marks=pytest.mark.exhaustive),
  ],
)
def test_workers_are_like_one_process_on_all_batches(
  start, tmp_path, how, optimizer, num_workers
):
  cluster = start(num_workers, how, optimizer, 14)
  _finish(cluster)
  _assert_like_one_process(tmp_path, optimizer, 14, num_workers)
  logs = {
    tuple(re.findall('logs .*', cluster.log('worker', i)))
    for i in range(num_workers)
  }
  assert len(logs) == 1, logs  # metrics are those of all workers


def test_what_steps_write_by_themselves_is_averaged(start_workers):
  steps = 5
  cluster = start_workers(2, 'all_reduce_by_hand.py', steps, num_ps=0)
  _finish(cluster)
  mean = (1 + 2) / 2
  total = -mean * steps
  wanted = f'values {total} {total} {mean} {total} {total}'
  for index in range(2):
    assert wanted in cluster.log('worker', index), _logs(cluster)
    # Evaluations are no steps.
    assert f'evaluated {mean} steps {2 * steps}\n' in cluster.log(
      'worker', index
    )


def _counts(cluster, index):
  """How many steps a worker counted, and how many it may have repeated."""
  log = cluster.log('worker', index)
  (iterations,) = re.findall(r'^iterations (\d+)$', log, re.M)[-1:]
  (updates,) = re.findall(r'UpdatesReport\(updates=(\d+)', log)[-1:]
  (repeated,) = re.findall(r'steps_repeated=(\d+)', log)[-1:]
  return int(iterations), int(updates), int(repeated)


@pytest.mark.parametrize(
  ('how', 'lost', 'fault'),
  [
    ('fit', 2, 'kill'),
    pytest.param('fit', 2, 'freeze', marks=pytest.mark.exhaustive),
    pytest.param('fit', 0, 'kill', marks=pytest.mark.exhaustive),
    pytest.param('train', 1, 'kill', marks=pytest.mark.exhaustive),
    pytest.param('train', 0, 'freeze', marks=pytest.mark.exhaustive),
    pytest.param('loop', 2, 'kill', marks=pytest.mark.exhaustive),
  ],
)
def test_training_outlasts_a_worker_that_returns(
  start, tmp_path, how, lost, fault
):
  other, steps = (lost + 1) % 3, 120
  cluster = start(3, how, 'adam', steps, SLOW=str(other))
  _wait_for(cluster, other, '\nat 1')
  names = 'worker:0, worker:1, worker:2'.replace(f'worker:{other}', '')
  back = f'worker:{other} adds up gradients with ' + ', '.join(
    re.findall(r'worker:\d', names)
  )
  _wait_for(cluster, other, back)
  groups, whole = (
    cluster.log('worker', other).count(what) for what in (_IS_IN, back)
  )
  getattr(cluster, fault)('worker', lost)
  if lost:
    _wait_for(cluster, other, _IS_IN, groups + 1)
  if fault == 'kill':
    cluster.start('worker', lost)
  else:
    cluster.thaw('worker', lost)
  if lost or fault == 'kill':  # else the others may not have noticed
    _wait_for(cluster, other, back, whole + 1)
  (tmp_path / 'go').touch()
  _finish(cluster)
  _assert_equal(tmp_path, 3)
  for index in range(3):
    iterations, updates, repeated = _counts(cluster, index)
    assert iterations == updates
    assert steps <= updates <= steps + repeated


def test_a_worker_that_does_not_come_is_named(start, tmp_path):
  cluster = start(2, 'fit', 'sgd', 10, CONNECT_SECS='2')
  cluster.kill('worker', 1)
  assert cluster.wait('worker', 0, timeout_secs=_TIMEOUT_SECS) == 1
  log = cluster.log('worker', 0)
  assert 'DeadlineError: After 2 seconds, worker:0 still waits for' in log
  assert 'worker:1 at ' in log


def _said(cluster, index, what):
  (said,) = re.findall(f'^{what} (.*)$', cluster.log('worker', index), re.M)
  return json.loads(said)


@pytest.mark.parametrize(
  'index', [0, pytest.param(1, marks=pytest.mark.exhaustive)]
)
def test_a_worker_with_other_variables_is_refused(start, index):
  cluster = start(2, 'fit', 'sgd', 4, MORE=str(index))
  assert cluster.wait('worker', 1, timeout_secs=_TIMEOUT_SECS) == 1
  says = 'worker:1 has other variables than worker:0, whose'
  assert says in cluster.log('worker', 1), _logs(cluster)


@pytest.mark.exhaustive
def test_a_program_of_tensorflows_tutorials_runs_with_one_line_changed(
  start_workers, tmp_path
):
  cluster = start_workers(2, 'multi_worker.py', tmp_path, num_ps=0)
  _finish(cluster)
  for what in ('history', 'weights', 'evaluate', 'losses', 'loop weights'):
    assert _said(cluster, 0, what) == _said(cluster, 1, what), what
  assert _said(cluster, 0, 'predicted') == [6, 3]
  history = _said(cluster, 0, 'history')
  assert len(history['loss']) == 3
  assert history['loss'][-1] < history['loss'][0]
  losses = _said(cluster, 0, 'losses')
  assert sum(losses[-5:]) < sum(losses[:5])
