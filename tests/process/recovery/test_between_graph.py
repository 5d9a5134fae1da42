"""Worker processes that share variables go on after faults of any of them."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import waiting

_STEPS = 800


@pytest.fixture
def start(start_workers, tmp_path):
  def start(how, steps, take_over_secs=60, replicas=0, replicate_every_secs=0):
    args = take_over_secs, replicas, replicate_every_secs
    return start_workers(2, 'survive.py', how, steps, tmp_path / 'cuts', *args)

  return start


def numbers(cluster, index, what):
  found = re.findall(rf'^{what} (.*)$', cluster.log('worker', index), re.M)
  return [[float(word) for word in line.split()] for line in found]


def wait_for_steps(cluster, number, index=0):
  waiting.until(
    lambda: len(numbers(cluster, index, 'at')) > number, timeout_secs=120
  )


def finish(cluster, *others):
  """All tasks end in order, but those that may be back too late for that."""
  for task in (*cluster.cluster.tasks('worker'), *cluster.cluster.tasks('ps')):
    if (task.job, task.index) not in others:
      status = cluster.wait(task.job, task.index, timeout_secs=150)
      assert status == 0, cluster.log(task.job, task.index)[-3000:]


def go_on(cluster, number=10):
  """Waits until both workers have done more executions."""
  before = [len(numbers(cluster, index, 'at')) for index in range(2)]
  for index in range(2):
    wait_for_steps(cluster, before[index] + number, index)


def leave(cluster):
  """Tells both workers to end, the chief at last."""
  for index in (1, 0):
    cluster.terminate('worker', index)
    assert cluster.wait('worker', index, timeout_secs=60) == 143
    assert 'Leaving on SIGTERM with status 143.' in cluster.log('worker', index)


def snapshot(folder):
  """The global step, and the least and the most value in the last snapshot."""
  latest = max((folder / 'cuts').glob('snapshot-*'))
  reader = tf.train.load_checkpoint(str(latest / 'values'))
  names = ('count', 'table', 'other')
  values = np.hstack([np.ravel(reader.get_tensor(name)) for name in names])
  (step,) = (
    name
    for name in reader.get_variable_to_shape_map()
    if name.endswith('global_step')
  )
  return reader.get_tensor(step), values.min(), values.max()


@pytest.mark.exhaustive
def test_workers_outlast_the_loss_of_a_ps_and_of_the_chief(start, tmp_path):
  cluster = start('train', 10**9, replicas=1)
  go_on(cluster)
  losses.lose(cluster, ('ps', 1))()
  go_on(cluster)
  assert 'is back, with all it had' in cluster.log('worker', 0)
  losses.lose(cluster, ('ps', 0), ('worker', 0))()
  go_on(cluster)
  leave(cluster)
  step, least, most = snapshot(tmp_path)
  # Each of the two losses has cut short one execution of each worker.
  assert step <= least <= most <= step + 2 * 2 * 2


@pytest.mark.exhaustive
def test_workers_outlast_one_fault_after_the_other(start, tmp_path):
  cluster = start('train', 10**9, take_over_secs=2, replicas=1)
  go_on(cluster)
  leave(cluster)
  step, least, most = snapshot(tmp_path)
  assert step == least == most >= 20  # nobody was in the middle of anything
  for index in range(2):
    cluster.start('worker', index)
  go_on(cluster)
  assert numbers(cluster, 0, 'at')[-1][0] > step
  losses.lose(cluster, ('ps', 1))()
  go_on(cluster)
  assert 'is back, with all it had' in cluster.log('worker', 0)
  losses.lose(cluster, ('ps', 0), ('worker', 0))()
  go_on(cluster)
  cluster.kill('ps', 1)
  cluster.kill('worker', 1)
  waiting.until(lambda: 'serves ps:1, too' in cluster.log('ps', 0))
  # A worker that comes only now finds it there.
  cluster.start('worker', 1)
  go_on(cluster)
  # So do all who come once it answers at home, too.
  cluster.start('ps', 1)
  leave(cluster)
  before = [len(cluster.log('worker', index)) for index in range(2)]
  for index in range(2):
    cluster.start('worker', index)
  go_on(cluster)
  for index in range(2):
    log = cluster.log('worker', index)[before[index] :]
    assert 'ps:1 is at' in log
    assert 'lost' not in log
  leave(cluster)
  step, least, most = snapshot(tmp_path)
  # Each of the three faults has cut short one execution of each worker.
  assert step <= least <= most <= step + 3 * 2 * 2


LOSSES = {
  'a ps and a worker': [('ps', 1), ('worker', 1)],
  'a ps and the chief': [('ps', 0), ('worker', 0)],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize('loss', LOSSES)
def test_workers_go_on_to_the_last_step(start, loss):
  cluster = start('train', _STEPS)
  wait_for_steps(cluster, 30, index=0)
  wait_for_steps(cluster, 10, index=1)
  losses.lose(cluster, *LOSSES[loss])()
  late = [task for task in LOSSES[loss] if task == ('worker', 1)]
  finish(cluster, *late)
  for index in range(2 - len(late)):
    # What the other was doing as a cut was made is in it by half.
    for least, most in numbers(cluster, index, 'values'):
      assert _STEPS - 20 <= least <= most <= _STEPS + 20


@pytest.mark.exhaustive
@pytest.mark.parametrize('ps', [0, 1])
def test_with_replicas_nothing_is_set_back(start, ps):
  cluster = start('train', _STEPS, replicas=1)
  wait_for_steps(cluster, 30, index=0)
  wait_for_steps(cluster, 10, index=1)
  losses.lose(cluster, ('ps', ps))()
  finish(cluster)
  for index in range(2):
    steps = [step for (step,) in numbers(cluster, index, 'at')]
    assert steps == sorted(steps)
    # Each worker may do a step again, and end an execution above the last step.
    for least, most in numbers(cluster, index, 'values'):
      assert _STEPS <= least <= most <= _STEPS + 2 + 2
    assert numbers(cluster, index, 'repeated')[0][0] <= 1
  assert 'is back, with all it had' in cluster.log('worker', 0)


@pytest.mark.exhaustive
def test_with_snapshots_only_what_a_lost_ps_had_is_set_back(start):
  """By a chief that was started again, too, and by nobody else."""
  cluster = start('train', 2 * _STEPS, replicas=1, replicate_every_secs=0.2)
  wait_for_steps(cluster, 30, index=0)
  wait_for_steps(cluster, 10, index=1)
  losses.lose(cluster, ('worker', 0))()
  so_far = len(numbers(cluster, 0, 'at'))
  wait_for_steps(cluster, so_far + 60, index=0)
  losses.lose(cluster, ('ps', 1))()
  finish(cluster)
  assert numbers(cluster, 0, 'threads') == [[1]]
  assert numbers(cluster, 1, 'threads') == [[0]]
  (ago,) = re.findall(
    r'is back, with all it had (\S+) seconds ago', cluster.log('worker', 0)
  )
  assert 0.2 < float(ago) < 20
  for index in range(2):
    for least, most in numbers(cluster, index, 'values'):
      # What was lost with the global step is what the others have more.
      assert least >= 2 * _STEPS - 300
      assert most <= 2 * _STEPS + 300


@pytest.mark.exhaustive
def test_fit_goes_on(start):
  cluster = start('fit', 1_000)
  wait_for_steps(cluster, 30, index=0)
  wait_for_steps(cluster, 10, index=1)
  losses.lose(cluster, ('ps', 0))()
  finish(cluster)
  for index in range(2):
    # The other may do the last execution.
    assert numbers(cluster, index, 'at')[-1][0] >= 1_000 - 10
    assert numbers(cluster, index, 'loss')[-1][0] < 0.1
