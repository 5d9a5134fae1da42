import pytest

from tfps.cluster.spec import Cluster
from tfps.cluster.spec import Task
from tfps.server import health
from tfps.server import joining

_CHIEF = Task('chief', 0)
_WORKER = Task('worker', 0)
_CLUSTER = Cluster({'ps': ['h:1'], 'worker': ['h:2']})
_CLIENTS = {_CHIEF: 'h:3'}


class World:
  """What a worker finds when it looks, and whom it has asked."""

  def __init__(self, monkeypatch, task=_WORKER):
    self.now = 0.0
    self.incarnation = None
    self.num_asked = 0
    self.told = []
    monkeypatch.setattr(joining.control_messages, 'ask_to_join', self._note)
    monkeypatch.setattr(
      joining.homes, 'post', lambda *facts: self.told.append(facts)
    )
    self.joining = joining.Joining(
      task, 'h:2', _CLUSTER, clock=lambda: self.now, ask=self._find
    )

  def look(self, clients=_CLIENTS):
    """Looks once more; how often it has asked."""
    self.now += 10
    self.joining.tend(clients)
    return self.num_asked

  def _note(self, task, address, servers):
    assert (task, address) == (_WORKER, 'h:2')
    assert servers == {Task('ps', 0): 'h:1'}
    self.num_asked += 1

  def _find(self, task, address):
    state = health.State.ALIVE if self.incarnation else health.State.DEAD
    return health.Status(task, address, state, incarnation=self.incarnation)


@pytest.fixture
def world(monkeypatch):
  return World(monkeypatch)


def test_a_worker_of_whom_nobody_knows_asks_again_and_again(world):
  assert [world.look({}) for _ in range(3)] == [1, 2, 3]


def test_nobody_asks_at_once_or_all_the_time(world):
  world.joining.tend({})
  assert world.num_asked == 0
  world.look({})
  world.joining.tend({})
  assert world.num_asked == 1


def test_who_has_heard_a_client_does_not_ask(world):
  world.incarnation = 1
  world.joining.note_hello(_CHIEF, 'h:3')
  assert [world.look() for _ in range(2)] == [0, 0]


def test_a_chief_that_is_expected_has_said_nothing(world):
  world.incarnation = 1
  assert world.look() == 1


def test_a_chief_that_was_started_again_is_asked(world):
  world.incarnation = 1
  world.joining.note_hello(_CHIEF, 'h:3')
  assert world.look() == 0
  world.incarnation = 2
  assert world.look() == 1
  world.joining.note_hello(_CHIEF, 'h:3')
  assert [world.look() for _ in range(2)] == [1, 1]


def test_a_chief_that_was_started_again_at_once_is_asked(world):
  world.incarnation = 1
  world.joining.note_hello(_CHIEF, 'h:3')
  world.incarnation = 2
  assert world.look() == 1


def test_the_only_ps_tells_workers_where_it_is_and_does_not_ask(monkeypatch):
  task = Task('ps', 0)
  world = World(monkeypatch, task)
  assert world.look({}) == 0
  assert world.told == [(task, 'h:2', {_WORKER: 'h:2'})]


def test_a_ps_whose_client_is_alive_tells_nobody(monkeypatch):
  world = World(monkeypatch, Task('ps', 0))
  world.incarnation = 1
  world.joining.note_hello(_CHIEF, 'h:3')
  assert world.look() == 0
  assert world.told == []
