"""When the steps of full executions are unrolled."""

import types

import pytest

import tfps
from tfps.training import unrolling
from tfps.wire import transfers


class _World:
  """A loop whose first execution takes 3 seconds, and all others 1."""

  def __init__(self, monkeypatch, **wire):
    self._now = 1000.0
    clock = types.SimpleNamespace(monotonic=lambda: self._now)
    monkeypatch.setattr(unrolling, 'time', clock)
    self.unrolling = unrolling.Unrolling(
      transfers.Transfers(tfps.Wire(**wire), 1)
    )

  def execute(self, number):
    for _ in range(number):
      with self.unrolling.timed():
        self._now += 1 if self.unrolling._secs else 3
      self.unrolling.note_result()
      self._now += 100  # elsewhere


def _yes():
  return True


@pytest.fixture
def world(monkeypatch):
  return _World(monkeypatch)


def test_they_are_once_loops_have_taken_ten_times_as_long(world):
  assert not world.unrolling.unroll_if_due(4, None, _yes)
  world.execute(1 + 117)  # 120 seconds
  assert not world.unrolling.unroll_if_due(4, None, _yes)
  assert world.unrolling.form(4, 4).body == 1
  world.execute(1)
  assert world.unrolling.unroll_if_due(4, None, _yes)
  assert not world.unrolling.unroll_if_due(4, None, _yes)  # they are already
  assert world.unrolling.form(4, 4) == unrolling.step_loop.Form(0, 4)
  assert world.unrolling.form(3, 4).body == 1  # not the odd end


def test_they_are_not_while_a_task_is_frozen(world):
  probes = []

  def can_trace():
    probes.append(world.unrolling._secs)
    return False

  world.execute(119)  # 121 seconds
  for _ in range(3):
    assert not world.unrolling.unroll_if_due(4, None, can_trace)
  world.execute(120)
  assert not world.unrolling.unroll_if_due(4, None, can_trace)
  assert probes == [121]
  world.execute(2)
  assert world.unrolling.unroll_if_due(4, None, _yes)


def test_they_are_not_if_preparing_them_may_take_longer_than_allowed(world):
  world.execute(200)
  assert not world.unrolling.unroll_if_due(4, 12.0, _yes)
  assert world.unrolling.unroll_if_due(4, 13.0, _yes)


def test_they_are_not_if_few_steps_are_left(world):
  world.execute(1 + 237)  # 240 seconds
  assert not world.unrolling.unroll_if_due(4, None, _yes, left=0.5)
  assert world.unrolling.unroll_if_due(4, None, _yes, left=0.51)


@pytest.mark.parametrize(
  ('num_operations', 'full', 'body'),
  [
    (500, 32, 0),
    (500, 33, 11),
    (1_000, 20, 0),
    (1_001, 20, 5),
    (1_600, 32, 4),
    (2_500, 8, 0),
    (4_000, 20, 2),
  ],
)
def test_few_steps_of_large_models_are_unrolled(
  world, num_operations, full, body
):
  world.unrolling.note_size(num_operations)
  world.execute(10_000)
  assert world.unrolling.unroll_if_due(full, None, _yes)
  rest = 0 if body else full
  assert world.unrolling.form(full, full) == unrolling.step_loop.Form(
    body, rest
  )


@pytest.mark.parametrize(
  ('wire', 'full'),
  [({'unroll': 1}, 8), ({}, 1), ({}, 37), ({'prefetch': 1}, 8)],
)
def test_they_never_are(monkeypatch, wire, full):
  world = _World(monkeypatch, **wire)
  world.execute(10_000)
  assert not world.unrolling.unroll_if_due(full, None, _yes)
