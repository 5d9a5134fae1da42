"""With a recovery, a hybrid's workers outlast the loss of ps."""

import re

import pytest

from tests.support import losses
from tests.support import waiting

_TIMEOUT_SECS = 150.0

_STEPS = 60
# Of an execution of two steps, of which one may have been done in part.
_MOST_REPEATED = 2


@pytest.fixture
def start(start_workers, tmp_path):
  return lambda how, steps, num_workers=2, **env: start_workers(
    num_workers, 'hybrid_survive.py', how, steps, tmp_path / 'cuts', **env
  )


def _numbers(cluster, index, what):
  """The last line of numbers of that kind in a worker's log."""
  lines = re.findall(rf'^{what} (.*)$', cluster.log('worker', index), re.M)
  return [float(word) for word in lines[-1].split()] if lines else []


def _wait_for_steps(cluster, number, num_workers=2):
  def done(index):
    return cluster.log('worker', index).count('\nat ')

  before = [done(index) for index in range(num_workers)]
  for index in range(num_workers):
    waiting.until(
      lambda index=index: done(index) >= before[index] + number,
      timeout_secs=_TIMEOUT_SECS,
    )


def _finish(cluster, num_workers=2):
  for index in range(num_workers):
    status = cluster.wait('worker', index, timeout_secs=_TIMEOUT_SECS)
    assert status == 0, cluster.log('worker', index)[-3000:]


def _assert_all_have_the_same(cluster, num_workers):
  for what in ('held', 'there', 'steps'):
    first = _numbers(cluster, 0, what)
    for index in range(num_workers):
      values = _numbers(cluster, index, what)
      assert values == first
      assert len(set(values)) == 1  # of all variables


def _assert_counts_are_exact(cluster, steps, num_workers=2):
  """At most the steps that are reported were done twice, or by some alone."""
  _assert_all_have_the_same(cluster, num_workers)
  (repeated,) = _numbers(cluster, 0, 'repeated')
  for what in ('held', 'there'):
    assert abs(_numbers(cluster, 0, what)[0] - steps) <= repeated
  assert repeated <= _MOST_REPEATED


@pytest.mark.parametrize(
  ('how', 'lost'),
  [
    ('train', [('ps', 0), ('worker', 1)]),
    pytest.param('train', [('ps', 0)], marks=pytest.mark.exhaustive),
    pytest.param('fit', [('ps', 0)], marks=pytest.mark.exhaustive),
    pytest.param('fit', [('ps', 1)], marks=pytest.mark.exhaustive),
  ],
)
def test_with_replicas_each_step_counts(start, how, lost):
  cluster = start(how, _STEPS, REPLICAS='1')
  _wait_for_steps(cluster, 5)
  losses.lose(cluster, *lost)()
  _finish(cluster)
  steps = _STEPS if how == 'fit' else _numbers(cluster, 0, 'steps')[0]
  assert _STEPS <= steps <= _STEPS + 1  # whole executions
  _assert_counts_are_exact(cluster, steps)
  assert _numbers(cluster, 0, 'repaired') == [1]
  assert 'is back, with all it had' in cluster.log('worker', 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('lost', 'every_secs'),
  [
    ([('ps', 1)], 0.5),
    ([('ps', 0), ('ps', 1)], 0.5),
    ([('ps', 0), ('worker', 1)], 0.5),
    # Else a chief that makes its variables slowly has deleted what it began
    # with before all have their values.
    ([('ps', 0), ('worker', 0)], 600),
  ],
  ids=['a ps', 'all ps', 'a ps and a worker', 'a ps and the chief'],
)
def test_tables_are_set_back_to_a_snapshot_and_the_rest_stays(
  start, lost, every_secs
):
  cluster = start('train', _STEPS, EVERY_SECS=str(every_secs))
  _wait_for_steps(cluster, 20)
  losses.lose(cluster, *lost)()
  _finish(cluster)
  _assert_all_have_the_same(cluster, 2)
  (steps,) = _numbers(cluster, 0, 'steps')
  assert _STEPS <= steps <= _STEPS + 1
  assert set(_numbers(cluster, 0, 'there')) == {steps}
  assert _numbers(cluster, 0, 'held')[0] >= steps


@pytest.mark.exhaustive
@pytest.mark.parametrize('lost', [0, 1])
def test_fit_goes_on_with_a_ps_that_another_one_serves(start, lost):
  cluster = start('fit', _STEPS, TAKE_OVER_SECS='0.5')
  _wait_for_steps(cluster, 20)
  cluster.kill('ps', lost)
  _finish(cluster)
  _assert_all_have_the_same(cluster, 2)
  (repeated,) = _numbers(cluster, 0, 'repeated')
  assert abs(_numbers(cluster, 0, 'held')[0] - _STEPS) <= repeated
  assert f'serves ps:{lost}, too' in cluster.log('ps', 1 - lost)


@pytest.mark.exhaustive
@pytest.mark.parametrize('how', ['train', 'fit'])
def test_one_worker_goes_on(start, how):
  cluster = start(how, _STEPS, num_workers=1, REPLICAS='1')
  _wait_for_steps(cluster, 10, num_workers=1)
  losses.lose(cluster, ('ps', 0))()
  _finish(cluster, num_workers=1)
  steps = _STEPS if how == 'fit' else _numbers(cluster, 0, 'steps')[0]
  _assert_counts_are_exact(cluster, steps, num_workers=1)


@pytest.mark.exhaustive
def test_a_loop_of_ones_own_goes_on(start):
  cluster = start('loop', _STEPS, REPLICAS='1')
  _wait_for_steps(cluster, 10)
  losses.lose(cluster, ('ps', 0))()
  _finish(cluster)
  (calls,) = _numbers(cluster, 0, 'calls')
  assert 2 * _STEPS <= calls <= 2 * _STEPS + 2  # each may repeat one


@pytest.mark.exhaustive
def test_without_a_chief_that_restores_the_others_say_so(start):
  cluster = start('train', 10**9, TIMEOUT_SECS='5')
  _wait_for_steps(cluster, 10)
  cluster.kill('worker', 0)
  losses.lose(cluster, ('ps', 0))()
  assert cluster.wait('worker', 1, timeout_secs=_TIMEOUT_SECS) == 1
  said = 'DeadlineError: The chief has not restored the variables within 5 sec'
  assert said in cluster.log('worker', 1)


@pytest.mark.exhaustive
def test_without_a_recovery_a_lost_ps_is_named(start):
  cluster = start('train', 10**9, NO_RECOVERY='1')
  _wait_for_steps(cluster, 5)
  cluster.kill('ps', 1)
  for index in range(2):
    assert cluster.wait('worker', index, timeout_secs=_TIMEOUT_SECS) == 1
  logs = [cluster.log('worker', index) for index in range(2)]
  assert any('cannot continue: ps:1 at' in log for log in logs)
