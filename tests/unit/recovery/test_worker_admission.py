from absl import logging
import pytest

from tfps import errors
from tfps.cluster.spec import Task
from tfps.recovery import worker_admission

_KNOWN = {Task('worker', 0): 'localhost:1'}
_NEXT = Task('worker', 1), 'localhost:2'


class Guard:
  """Admits each worker while training runs."""

  def __init__(self, is_training=True):
    self.workers = dict(_KNOWN)
    self._is_training = is_training

  def admit(self, worker, address):
    if self._is_training:
      self.workers[worker] = address
    return self._is_training


class Presence:
  """Has met some, and is in another cluster than some others."""

  def __init__(self, strangers=()):
    self.met = []
    self._strangers = strangers

  def check(self, worker, address):
    if worker in self._strangers:
      raise errors.ClusterMismatchError('another cluster')

  def add(self, worker, address):
    self.met.append(worker)


def take_in(guard, presence, *worker):
  """Which workers were noted as new."""
  noted = []
  worker_admission.WorkerAdmission(
    guard, presence, lambda *worker: noted.append(worker)
  ).admit(*worker)
  return noted


def test_the_next_worker_is_taken_in():
  guard, presence = Guard(), Presence()
  assert take_in(guard, presence, *_NEXT) == [_NEXT]
  assert guard.workers == dict([*_KNOWN.items(), _NEXT])
  assert presence.met == [_NEXT[0]]


def test_a_worker_that_is_known_is_greeted():
  guard, presence = Guard(), Presence()
  worker = Task('worker', 0)
  assert take_in(guard, presence, worker, 'localhost:1') == []
  assert presence.met == [worker]


def test_a_worker_may_come_back_elsewhere():
  guard, presence = Guard(), Presence()
  worker = Task('worker', 0)
  moved = worker, 'localhost:9'
  assert take_in(guard, presence, *moved) == [moved]
  assert guard.workers == dict([moved])


@pytest.mark.parametrize(
  ('worker', 'reason'),
  [
    (Task('worker', 5), 'the next worker is worker:1'),
    (Task('ps', 1), 'it is not a worker'),
    (Task('worker', 1), 'another cluster'),
  ],
)
def test_who_is_turned_away_is_told_in_the_log(worker, reason, monkeypatch):
  said = []
  monkeypatch.setattr(
    logging,
    'log_every_n_seconds',
    lambda level, message, secs, *args: said.append(message % args),
  )
  guard, presence = Guard(), Presence(strangers=[Task('worker', 1)])
  assert take_in(guard, presence, worker, 'localhost:2') == []
  assert guard.workers == _KNOWN
  assert presence.met == []
  assert reason in said[0]


def test_nobody_is_greeted_while_nobody_trains():
  presence = Presence()
  assert take_in(Guard(is_training=False), presence, *_NEXT) == []
  assert presence.met == []
