"""The claims of docs/between_graph.md, seen on real ps and workers."""

import collections
import pathlib
import re
import sys

import pytest

from tfps import testing

_CLAIMS = pathlib.Path(__file__).parents[2] / 'programs' / 'claims.py'
# TensorFlow logs each tensor that one task sends to another.
_LOG_TENSORS = {'TF_CPP_MIN_LOG_LEVEL': '0', 'TF_CPP_VMODULE': 'sendrecv_ops=2'}
_TENSOR = re.compile(
  r'\] (Send|Recv) /job:(\w+)/replica:0/task:(\d+)/[^;]*;\w+;'
  r'/job:(\w+)/replica:0/task:(\d+)/[^;]*;([^;]*);'
)


@pytest.fixture(scope='module')
def logs():
  """What two workers say that go through the claims with two ps."""
  with testing.ProcessCluster(
    2,
    2,
    commands={'worker': [sys.executable, str(_CLAIMS)]},
    env=_LOG_TENSORS,
    preload=['tensorflow'],
  ) as cluster:
    for index in range(2):
      assert cluster.wait('worker', index, timeout_secs=180) == 0
    yield [cluster.log('worker', index) for index in range(2)]


@pytest.mark.exhaustive
def test_the_ps_adds_updates_instead_of_keeping_the_last(logs):
  # Both have read 1; one subtracts 1/4 of that and the other 1/2. Had the ps
  # kept the last, there would be 0.75 or 0.5.
  for log in logs:
    assert 'after two updates 0.25\n' in log


@pytest.mark.exhaustive
def test_a_worker_may_see_the_first_half_of_an_update(logs):
  assert 'between 1.0 0.0\n' in logs[1]
  for log in logs:
    assert 'afterwards 1.0 1.0\n' in log


def _tensors(log: str) -> collections.Counter[tuple[str, str]]:
  """How many tensors went which way in one step, by the ps they concern."""
  begin, end = log.index('step begins\n'), log.index('step ends\n')
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  for way, job, index, other_job, other_index, _ in _TENSOR.findall(
    log[begin:end]
  ):
    assert {job, other_job} == {'ps', 'worker'}
    counts[way, index if job == 'ps' else other_index] += 1
  return counts


def _ps_of(log: str, what: str) -> str:
  (index,) = re.findall(
    rf'^{what} is on /job:ps/replica:0/task:(\d)', log, re.M
  )
  return index


@pytest.mark.exhaustive
def test_a_worker_sends_each_ps_its_own_gradients_and_no_slots_move(logs):
  large, small = _ps_of(logs[0], 'large'), _ps_of(logs[0], 'small')
  assert {large, small} == {'0', '1'}
  assert _ps_of(logs[0], 'learning rate') == small
  for log in logs:
    # From each ps its variable, with the learning rate and the step counter of
    # one, and to each ps that one's gradient. Momentum stays where it is.
    assert _tensors(log) == {
      ('Recv', large): 1,
      ('Recv', small): 1,
      ('Send', large): 1,
      ('Send', small): 1,
    }
