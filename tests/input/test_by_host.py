"""Workers of one host that take from a queue and push one gradient for all."""

import re

import pytest

from tests import starting
from tests import waiting
from tests.programs import take_by_host

pytestmark = pytest.mark.slow

_WORKERS = 3


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('take')


@pytest.fixture(scope='module')
def cluster(folder):
  with starting.workers(_WORKERS, 'take_by_host.py', folder) as cluster:
    for index in range(_WORKERS):
      waiting.until(
        lambda index=index: 'ready\n' in cluster.log('worker', index),
        timeout_secs=200,
      )
    yield cluster


def _said(cluster, index, name):
  """What a worker has said of something, each time."""
  lines = re.findall(rf'^{name} (.+)\n', cluster.log('worker', index), re.M)
  return [[float(word) for word in line.split()] for line in lines]


@pytest.mark.parametrize(
  ('place', 'numbers', 'epochs'),
  [
    (0, take_by_host.TRAINED, 1),
    (1, take_by_host.FITTED, take_by_host.EPOCHS - 1),
  ],
  ids=['train', 'fit'],
)
def test_all_is_visited_once_in_updates_of_all(cluster, place, numbers, epochs):
  total, _ = numbers
  num_batches = epochs * (total // take_by_host.BATCH)
  pushed = 0
  for index in range(_WORKERS):
    pushed += _said(cluster, index, 'pushed')[place][0]
    visits = [epochs, epochs, epochs * total]
    assert _said(cluster, index, 'visits')[place] == visits
    updates, shares, late = _said(cluster, index, 'updates')[place]
    assert shares == pytest.approx(updates)
    assert late == 0
  # As would be said each time that somebody waits for who has no batches.
  logs = [cluster.log('worker', index) for index in range(_WORKERS)]
  assert sum(log.count('this host, ') for log in logs) < 3
  assert num_batches / _WORKERS <= updates < 0.6 * num_batches
  # The first gradients of a worker that was not there are pushed alone.
  assert updates <= pushed / (8 * total) < 0.8 * num_batches


def _goes_on(cluster, index, number=5):
  begun = len(_said(cluster, index, 'on'))
  waiting.until(lambda: len(_said(cluster, index, 'on')) >= begun + number)


def test_others_take_what_a_killed_worker_was_at(cluster, folder):
  before = [len(_said(cluster, index, 'on')) for index in range(_WORKERS)]
  total, split = take_by_host.FITTED

  def splits(index):
    numbers = _said(cluster, index, 'on')[before[index] :]
    return [int(first) // split for (first,) in numbers]

  (folder / 'go').touch()
  waiting.until(lambda: all(splits(index) for index in range(_WORKERS)))
  # One has had the last split, which is short, and has nothing to do.
  first, last = [i for i in range(_WORKERS) if splits(i)[0] != 2]
  (idle,) = {0, 1, 2} - {first, last}
  (at,) = set(splits(last))
  cluster.kill('worker', last)  # for which another one pushes
  waiting.until(lambda: at in splits(idle))
  _goes_on(cluster, idle)
  pusher, other = sorted([first, idle])
  at = splits(pusher)[-1]
  cluster.kill('worker', pusher)
  waiting.until(lambda: splits(other)[-1] == at)
  assert cluster.wait('worker', other, timeout_secs=100) == 0
  least, _, visited = _said(cluster, other, 'visits')[-1]
  assert least == take_by_host.EPOCHS
  again = take_by_host.PER_EXECUTION * take_by_host.BATCH
  assert visited - take_by_host.EPOCHS * total <= 2 * again
  updates, shares, late = _said(cluster, other, 'updates')[-1]
  assert shares == pytest.approx(updates)
  assert late == 0
  assert '0 to do, 0 doing, 3 done' in cluster.log('worker', other)
