"""Tasks that are silent, restarted or have left, as looks at them tell."""

import pytest

from tfps.server import task_registry

_KNOWN = {0: 7, 1: 8}


class _Looks:
  """A registry with a clock that goes on by some seconds with each look."""

  def __init__(self, known=None, secs=2.0):
    self.now = 1000.0
    self._secs = secs
    self.registry = task_registry.TaskRegistry(known, lambda: self.now)

  def look(self, found):
    self.now += self._secs
    return self.registry.look(found)

  def has_changed(self, found):
    self.now += self._secs
    return self.registry.has_changed(found)


@pytest.mark.parametrize(
  ('looks', 'has_changed'),
  [
    ([_KNOWN], False),
    ([{0: 7, 1: 9}], True),
    ([{0: 7, 1: None}], False),
    ([{0: 7, 1: None}, {0: 7, 1: None}], True),
    ([{0: 7, 1: None}, {0: None, 1: 8}], False),
    ([{0: 7, 1: None}, _KNOWN, {0: 7, 1: None}], False),
  ],
  ids=[
    'all as they were',
    'one has restarted',
    'one is silent',
    'one is still silent',
    'another is silent',
    'one has answered meanwhile',
  ],
)
def test_a_task_that_is_silent_for_a_while_has_changed(looks, has_changed):
  world = _Looks(_KNOWN)
  assert [world.has_changed(look) for look in looks][-1] == has_changed


def test_two_looks_at_once_are_as_one():
  world = _Looks(_KNOWN, secs=0.1)
  assert not any(world.has_changed({0: 7, 1: None}) for _ in range(9))
  assert [world.has_changed({0: 7, 1: None}) for _ in range(3)][-1]


def test_a_look_of_long_ago_is_forgotten():
  world = _Looks(_KNOWN)
  silent = {0: 7, 1: None}
  assert not world.has_changed(silent)
  world.now += 100
  assert not world.has_changed(silent)
  assert world.has_changed(silent)


def test_the_first_answer_of_a_new_task_is_in_use():
  world = _Looks()
  assert world.look({0: None}) == set()
  assert world.registry.silent() == {0}
  assert world.look({0: 5}) == set()
  assert world.registry.silent() == set()
  assert world.registry.known == {0: 5}


def test_a_restart_is_told_until_it_is_accepted():
  world = _Looks(_KNOWN)
  for _ in range(2):
    assert world.look({0: 9, 1: 8}) == {0}
  world.registry.accept({0: 9})
  assert world.look({0: 9, 1: 8}) == set()
  assert world.look({0: 7, 1: 8}) == {0}


def test_a_task_that_has_left_is_restarted_once_it_answers():
  world = _Looks(_KNOWN)
  world.registry.accept({1: None})
  for _ in range(3):
    assert not world.has_changed({0: 7, 1: None})
  assert world.look({0: 7, 1: 8}) == {1}


def test_silence_has_a_length():
  world = _Looks(_KNOWN)
  for _ in range(3):
    world.look({0: None, 1: 8})
  assert world.registry.silent(4.0) == {0}
  assert world.registry.silent(4.1) == set()
  world.registry.forget_silence()
  assert world.registry.silent() == set()
  world.look({0: None, 1: 8})
  assert world.registry.silent() == {0}
