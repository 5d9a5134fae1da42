"""Workers that are silent or restarted while others wait for them."""

import types

import pytest

from tfps.cluster import spec as spec_lib
from tfps.server import task_registry
from tfps.updates.sync import failure_detector

_SILENCE_SECS = 10.0


class _World:
  """A session whose first worker waits for two others."""

  def __init__(self, monkeypatch):
    self.now = 1000.0
    self.answers = {spec_lib.Task('worker', i): 10 + i for i in (1, 2)}
    self.versions = [7]  # that workers wait for
    self.told = []
    monkeypatch.setattr(
      task_registry,
      'time',
      types.SimpleNamespace(monotonic=lambda: self.now),
    )
    monkeypatch.setattr(
      failure_detector.health, 'incarnations', lambda workers: self.answers
    )
    self.detector = failure_detector.FailureDetector(
      types.SimpleNamespace(
        executions=types.SimpleNamespace(
          are_running=True,
          call_on_begin=lambda begin: None,
          dismiss_idle=lambda: None,
        ),
        state=types.SimpleNamespace(
          versions_awaited=lambda: list(self.versions)
        ),
        members=types.SimpleNamespace(
          leave_out=lambda worker: self.told.append(('leave out', worker)),
          replace_leader=lambda worker: self.told.append(('replace', worker)),
        ),
      ),
      dict,
      lambda worker: worker.index,
      timeout_secs=_SILENCE_SECS,
    )
    self.look()  # compares with nothing, so it does not probe
    self.look()

  def answer(self, worker, incarnation):
    self.answers = {
      **self.answers,
      spec_lib.Task('worker', worker): incarnation,
    }

  def look(self, secs=0.0):
    self.now += secs
    self.told.clear()
    self.detector._look()
    return list(self.told)


@pytest.fixture
def world(monkeypatch):
  return _World(monkeypatch)


def test_all_that_answer_are_waited_for(world):
  for _ in range(3):
    assert world.look(_SILENCE_SECS) == []


def test_who_is_silent_is_left_out_after_a_while_and_whenever_it_is(world):
  world.answer(2, None)
  assert world.look() == []
  assert world.look(_SILENCE_SECS - 1) == []
  assert world.look(1) == [('leave out', 2)]
  assert world.look(1) == [('leave out', 2)]
  world.answer(2, 12)
  assert world.look(1) == []
  world.answer(2, None)
  assert world.look(1) == []


def test_silence_counts_while_others_wait_for_the_same(world):
  world.answer(1, None)
  assert world.look() == []
  world.versions = [8]  # it was not needed
  assert world.look(_SILENCE_SECS) == []
  assert world.look() == []
  assert world.look(_SILENCE_SECS) == [('leave out', 1)]


def test_who_has_restarted_does_not_make_the_update_that_it_led(world):
  world.answer(1, 21)
  assert world.look() == [('replace', 1)]
  assert world.look() == []


def test_who_was_left_out_and_has_restarted_is_told_once(world):
  world.answer(1, None)
  world.look()
  assert world.look(_SILENCE_SECS) == [('leave out', 1)]
  world.answer(1, 21)
  assert world.look(1) == [('replace', 1)]
  assert world.look(1) == []


def test_a_restart_that_could_not_be_told_is_told_later(world, monkeypatch):
  def fail(worker):
    raise RuntimeError('A ps is lost.')

  members = world.detector._sync_session.members
  world.answer(1, 21)
  with monkeypatch.context() as patch:
    patch.setattr(members, 'replace_leader', fail)
    with pytest.raises(RuntimeError, match='lost'):
      world.look()
  assert world.look() == [('replace', 1)]
