"""Workers that add up arrays, of whom some do not come, in one process."""

import concurrent.futures
import contextlib
import itertools
import os
import pathlib

from absl import logging
import numpy as np
import pytest

from tests import waiting
from tfps.hosts import groups
from tfps.hosts import messages

_NAMES = {i: f'worker:{i}' for i in range(3)}
_JOBS = itertools.count()


class _Workers:
  """Groups of one job, each of whose calls is made by a thread of its own."""

  def __init__(self, timeout_secs):
    self.job = f'test-{os.getpid()}-{next(_JOBS)}'
    self._timeout_secs = timeout_secs
    self.groups = {}
    self._pool = concurrent.futures.ThreadPoolExecutor(8)
    for i in _NAMES:
      self.start(i)

  def start(self, i):
    self.groups[i] = groups.Group(
      self.job, i, _NAMES, timeout_secs=self._timeout_secs
    )

  def begin(self, i, step, num_rows=1):
    turn = messages.Turn(step, 0, step)
    arrays = [
      np.full([2, 3], 10.0**i, 'f'),
      np.full([num_rows], i),
      np.array(i, np.int64),
    ]
    return self._pool.submit(
      self.groups[i].share, turn, arrays, [False, True, False]
    )

  def share(self, step, workers=tuple(_NAMES)):
    """Whose gradients each worker pushes, and what, of a turn."""
    begun = {i: self.begin(i, step) for i in workers}
    # Who pushes is first to return.
    found = {}
    for i in workers:
      found[i] = begun[i].result(15)
      self.groups[i].tell(is_pushed=True)
    return found

  def meet(self, step, workers=tuple(_NAMES)):
    """Has them share, from a step on, until only one pushes; the step after."""
    steps = itertools.count(step)

    def is_one():
      found = self.share(next(steps), workers)
      return sum(bool(by) for _, by in found.values()) == 1

    waiting.until(is_one)
    return next(steps)

  def stop(self):
    for group in self.groups.values():
      group.leave()
    self._pool.shutdown()


@pytest.fixture
def workers():
  made = _Workers(timeout_secs=20)
  yield made
  made.stop()


@pytest.fixture
def hasty():
  made = _Workers(timeout_secs=2)
  yield made
  made.stop()


@pytest.fixture
def warnings(monkeypatch):
  found = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: found.append(text % args)
  )
  return found


def test_the_first_pushes_what_all_have(workers):
  step = workers.meet(1)
  found = workers.share(step)
  assert [by for _, by in found.values()] == [[0, 1, 2], [], []]
  sums, rows, scalar = found[0][0]
  np.testing.assert_array_equal(sums, np.full([2, 3], 111, 'f'))
  np.testing.assert_array_equal(rows, [0, 1, 2])
  assert scalar == 3


def test_there_may_be_more_rows_than_before(workers):
  step = workers.meet(1)
  for number in (1, 5_000, 10, 200_000):
    begun = [workers.begin(i, step, number) for i in range(3)]
    (_, rows, _), by = begun[0].result(15)
    assert by == [0, 1, 2]
    np.testing.assert_array_equal(rows, np.repeat(range(3), number))
    workers.groups[0].tell(is_pushed=True)
    assert [each.result(15)[1] for each in begun[1:]] == [[], []]
    step += 1


def test_another_one_pushes_once_the_first_is_gone(workers):
  step = workers.meet(1)
  begun = [workers.begin(i, step) for i in range(3)]
  assert begun[0].result(15)[1] == [0, 1, 2]
  workers.groups[0].leave()
  assert [each.result(15)[1] for each in begun[1:]] == [[1], [2]]
  step = workers.meet(step + 1, (1, 2))
  found = workers.share(step, (1, 2))
  assert [by for _, by in found.values()] == [[1, 2], []]
  workers.start(0)
  step = workers.meet(step + 1)
  assert workers.share(step)[0][1] == [0, 1, 2]


@pytest.mark.parametrize('left', [0, 2])
def test_who_leaves_is_not_waited_for_until_it_shares_again(
  workers, warnings, left
):
  step = workers.meet(1)
  others = [i for i in _NAMES if i != left]
  begun = {i: workers.begin(i, step) for i in others}
  workers.groups[left].leave()
  for i, each in begun.items():
    each.result(15)
    workers.groups[i].tell(is_pushed=True)
  step = workers.meet(step + 1, others)
  assert workers.share(step, others)[others[0]][1] == others
  step = workers.meet(step + 1)
  assert workers.share(step)[0][1] == [0, 1, 2]
  assert not warnings


def test_who_does_not_come_is_named_and_not_waited_for_again(hasty, warnings):
  step = hasty.meet(1)
  assert hasty.share(step, (0, 1))[0][1] == [0, 1]
  assert [w for w in warnings if 'worker:2 had no gradients' in w]
  warnings.clear()
  assert hasty.share(step + 1, (0, 1))[0][1] == [0, 1]
  assert not warnings
  # Too late for its own turn, it is there for the next.
  assert hasty.begin(2, step + 1).result(15)[1] == [2]
  assert hasty.share(step + 2)[0][1] == [0, 1, 2]


def test_who_does_not_push_is_named_and_others_push_for_themselves(
  hasty, warnings
):
  step = hasty.meet(1)
  found = hasty.share(step, (1, 2))
  assert [by for _, by in found.values()] == [[1], [2]]
  named = [w for w in warnings if w.startswith('worker:0, which pushes')]
  assert len(named) == 2


def test_what_is_refused_is_pushed_by_each(workers):
  step = workers.meet(1)
  begun = [workers.begin(i, step) for i in range(3)]
  assert begun[0].result(15)[1] == [0, 1, 2]
  workers.groups[0].tell(is_pushed=False)
  assert [each.result(15)[1] for each in begun[1:]] == [[1], [2]]


def test_one_ahead_is_not_waited_for(workers):
  step = workers.meet(1)
  ahead = [workers.begin(i, step + 1) for i in (1, 2)]
  assert workers.begin(0, step).result(15)[1] == [0]
  assert workers.begin(0, step + 1).result(15)[1] == [0, 1, 2]
  workers.groups[0].tell(is_pushed=True)
  assert [each.result(15)[1] for each in ahead] == [[], []]


def test_jobs_do_not_mix_and_nothing_is_left(workers):
  other = _Workers(timeout_secs=20)
  for each in (workers, other):
    step = each.meet(1)
    assert each.share(step)[0][1] == [0, 1, 2]
  job = f'@tfps/{other.job}/'
  assert job in _sockets()
  assert not list(pathlib.Path('/dev/shm').glob('*tfps*'))
  assert _num_memories() > 0
  for each in (workers, other):
    each.stop()
  assert job not in _sockets()
  waiting.until(lambda: _num_memories() == 0)


def _sockets():
  return pathlib.Path('/proc/net/unix').read_text()


def _num_memories():
  """How many descriptors of memory this process has."""
  found = []
  for link in pathlib.Path('/proc/self/fd').iterdir():
    with contextlib.suppress(OSError):
      found.append(os.readlink(link))
  return sum('memfd:tfps' in each for each in found)
