"""When a worker aborts the collectives of its group, by a clock of the test."""

import types

import pytest
import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import task_registry
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import membership_table as membership_table_lib

_SILENCE_SECS, _STEP_SECS = 15.0, 60.0
_PEERS = [
  group_monitor.Peer(spec_lib.Task('worker', i), f'host{i}:1') for i in range(3)
]


def _entry(worker, **kwargs):
  fields = dict.fromkeys(membership_table_lib.Entry._fields, 0)
  return membership_table_lib.Entry(
    **{**fields, 'round': 1, 'place': 1, 'incarnation': 10 + worker, **kwargs}
  )


class Group:
  """Three workers of which the first watches, with servers that are told."""

  def __init__(self):
    self.now = 1000.0
    self.states = {}  # by worker; alive without one
    self.incarnations = {}
    self.left_out = []
    self.membership = membership_table_lib.MembershipTable(
      lambda ps, name, value: tf.Variable(value, name=name), len(_PEERS)
    )
    for worker in range(len(_PEERS)):
      self.membership.enter(worker, _entry(worker))
    self.membership.close(1)
    self.collective = types.SimpleNamespace(waiting_secs=None, has_failed=False)
    self.round = group_monitor.Round(1, (0, 1, 2), self.collective, place=0)
    self._monitor = group_monitor.GroupMonitor(
      _PEERS, 0, self.membership, _SILENCE_SECS, self.left_out.append
    )
    self._detector = group_monitor.LossDetector(_PEERS, _SILENCE_SECS)

  def probe_all(self, addresses):
    return [
      health.Status(
        task,
        address,
        self.states.get(task.index, health.State.ALIVE),
        self.incarnations.get(task.index, 10 + task.index),
      )
      for task, address in addresses.items()
    ]

  def wait(self, secs):
    """Lets time pass in which collectives wait."""
    self.now += secs
    self.collective.waiting_secs = (self.collective.waiting_secs or 0.0) + secs

  @property
  def reason(self):
    return self._monitor.reason_to_abort(self.round, _STEP_SECS, self._detector)

  @property
  def has_timed_out(self):
    return self._monitor.has_timed_out

  @property
  def is_change_requested(self):
    return self._monitor.is_change_requested


@pytest.fixture
def group(monkeypatch):
  made = Group()
  clock = types.SimpleNamespace(monotonic=lambda: made.now)
  monkeypatch.setattr(group_monitor, 'time', clock)
  monkeypatch.setattr(task_registry, 'time', clock)
  monkeypatch.setattr(group_monitor.health, 'probe_all', made.probe_all)
  return made


def test_who_computes_is_waited_for_so_long_and_not_longer(group):
  group.wait(_STEP_SECS - 1)
  assert not group.reason
  group.wait(2)
  assert 'have not come for 61 seconds' in group.reason
  assert group.has_timed_out
  assert not group.left_out


def test_a_step_that_others_may_do_alone_is_waited_for_as_well(group):
  group.round.num_awaited = 2
  group.wait(2 * _STEP_SECS - 1)
  assert not group.reason
  group.wait(2)
  assert group.reason


@pytest.mark.parametrize('state', [health.State.DEAD, health.State.ALIVE])
def test_who_is_dead_or_another_process_is_lost_at_once(group, state):
  group.states[2] = state
  group.incarnations[2] = 99
  assert not group.reason  # nothing waits
  group.wait(2)
  assert group.reason == 'worker:2 is lost.'
  assert group.left_out == [2]
  assert not group.has_timed_out


def test_who_is_silent_is_lost_after_a_while(group):
  group.states[1] = health.State.HUNG
  group.wait(2)
  assert not group.reason
  group.wait(_SILENCE_SECS - 1)
  assert not group.reason
  group.wait(2)
  assert group.reason == 'worker:1 is lost.'


def test_who_answers_again_is_silent_from_then_on(group):
  group.states[1] = health.State.HUNG
  for state in (health.State.HUNG, health.State.ALIVE, health.State.HUNG):
    group.states[1] = state
    group.wait(_SILENCE_SECS - 1)
    assert not group.reason
  group.wait(_SILENCE_SECS + 1)
  assert group.reason


def test_who_has_left_at_an_earlier_place_does_not_come(group):
  group.membership.enter(1, _entry(1, round=membership_table_lib.LEFT, place=0))
  assert not group.reason
  group.wait(0.1)
  assert group.reason == 'worker:1 has left the group.'


def test_who_has_done_what_is_waited_for_may_leave(group):
  group.membership.enter(1, _entry(1, round=membership_table_lib.LEFT))
  group.wait(0.1)
  assert not group.reason


def test_who_has_entered_for_another_round_asks_for_it(group):
  assert not group.reason
  assert not group.is_change_requested
  group.membership.enter(1, _entry(1, round=2, place=0))
  assert not group.reason
  assert group.is_change_requested


def test_a_round_that_was_closed_without_this_worker_is_over(group):
  group.membership.enter(1, _entry(1, round=2))
  group.membership.close(2)
  assert group.reason == 'The other workers closed a round without this one.'
