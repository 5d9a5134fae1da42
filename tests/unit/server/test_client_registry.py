import pytest

from tfps.cluster.spec import Task
from tfps.server import client_registry as client_registry_lib
from tfps.server import health
from tfps.server import messages

_CHIEF = Task('chief', 0)
_WORKER = Task('worker', 1)
_DONE = client_registry_lib.Verdict.DONE
_ABANDONED = client_registry_lib.Verdict.ABANDONED


class World:
  """A clock, and clients that are in one state or another."""

  def __init__(self, timeout_secs: float | None = 100.0) -> None:
    self.now = 0.0
    self.states: dict[Task, health.State] = {}
    self.client_registry = client_registry_lib.ClientRegistry(
      timeout_secs, clock=lambda: self.now, ask=self._ask
    )

  def _ask(self, task, address):
    state = self.states.get(task, health.State.DEAD)
    return health.Status(task, address, state)

  def says(self, task: Task, *, done: bool = False) -> None:
    said = (task, 'h:1', task == _CHIEF)
    if done:
      self.client_registry.hear_done(messages.Done(*said))
    else:
      self.client_registry.hear_hello(messages.Hello(*said))

  def after(self, secs: float) -> client_registry_lib.Verdict | None:
    """The first verdict within so many seconds."""
    for _ in range(int(secs * 4)):
      self.now += 0.25
      verdict = self.client_registry.verdict()
      if verdict:
        return verdict
    return None


@pytest.fixture
def world():
  return World()


def test_done_ends_soon_when_the_chief_was_alone(world):
  world.states[_CHIEF] = health.State.ALIVE
  world.says(_CHIEF)
  assert world.after(1000) is None
  world.says(_CHIEF, done=True)
  world.states[_CHIEF] = health.State.DEAD
  assert world.after(5) is _DONE


def test_a_chief_that_lingers_after_done_is_not_waited_for(world):
  world.states[_CHIEF] = health.State.ALIVE
  world.says(_CHIEF)
  world.says(_CHIEF, done=True)
  assert world.after(5) is _DONE


def test_done_waits_for_other_living_clients(world):
  world.states[_CHIEF] = world.states[_WORKER] = health.State.ALIVE
  world.says(_CHIEF)
  world.says(_WORKER)
  world.says(_CHIEF, done=True)
  assert world.after(50) is None
  world.says(_WORKER, done=True)
  assert world.after(5) is _DONE


def test_done_does_not_wait_for_dead_clients(world):
  world.says(_CHIEF)
  world.says(_WORKER)
  world.says(_CHIEF, done=True)
  assert world.after(5) is _DONE


def test_a_worker_that_is_done_ends_nothing(world):
  world.states[_CHIEF] = health.State.ALIVE
  world.says(_CHIEF)
  world.says(_WORKER)
  world.says(_WORKER, done=True)
  assert world.after(1000) is None


def test_a_chief_that_comes_back_takes_its_done_back(world):
  world.states[_CHIEF] = health.State.ALIVE
  world.says(_CHIEF)
  world.says(_CHIEF, done=True)
  world.says(_CHIEF)
  assert world.after(1000) is None


@pytest.mark.parametrize('state', [health.State.DEAD, health.State.HUNG])
def test_nobody_alive_for_long_is_abandoned(world, state):
  world.says(_CHIEF)
  world.states[_CHIEF] = state
  assert world.after(99) is None
  assert world.after(30) is _ABANDONED


def test_nobody_ever_is_abandoned(world):
  world.client_registry.expect(_CHIEF, 'h:1')
  assert world.after(99) is None
  assert world.after(30) is _ABANDONED


def test_an_expected_chief_that_lives_keeps_a_server_up(world):
  world.client_registry.expect(_CHIEF, 'h:1')
  world.states[_CHIEF] = health.State.ALIVE
  assert world.after(1000) is None


def test_without_a_limit_a_server_is_never_abandoned():
  world = World(timeout_secs=None)
  world.says(_CHIEF)
  assert world.after(10_000) is None


def test_a_frozen_client_is_waited_for_after_done_but_not_for_ever(world):
  world.states[_WORKER] = health.State.HUNG
  world.says(_CHIEF)
  world.says(_WORKER)
  world.says(_CHIEF, done=True)
  assert world.after(90) is None
  assert world.after(30) is _DONE


def test_a_client_that_cannot_be_reached_is_told_of_at_the_second_look(
  world, caplog
):
  world.says(_CHIEF)
  world.client_registry.verdict()
  assert 'said hello, but' not in caplog.text
  world.after(50)
  assert caplog.text.count('chief:0 said hello, but at h:1 it is') == 1


def test_a_client_that_is_slow_at_first_is_not_told_of(world, caplog):
  world.states[_CHIEF] = health.State.HUNG
  world.says(_CHIEF)
  world.client_registry.verdict()
  world.states[_CHIEF] = health.State.ALIVE
  world.after(60)
  world.states[_CHIEF] = health.State.HUNG
  world.after(60)
  assert 'said hello, but' not in caplog.text
