"""What workers of an elastic group tell each other."""

import numpy as np
import pytest
import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.updates.allreduce import agreements
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import membership as membership_lib
from tfps.updates.allreduce import membership_table as membership_table_lib
from tfps.updates.allreduce import others as others_lib
from tfps.updates.allreduce import reduction as reduction_lib


def _make(ps, name, value):
  del ps
  return tf.Variable(value, name=name)


def _entry(round, **kwargs):
  kwargs = dict.fromkeys(membership_table_lib.Entry._fields, 0) | kwargs
  return membership_table_lib.Entry(**{**kwargs, 'round': round})


def test_who_has_entered_is_in_the_round_that_is_closed():
  membership = membership_table_lib.MembershipTable(_make, 3)
  for worker in (0, 2):
    membership.enter(worker, _entry(1, port=10 + worker))
  membership.close(1)
  membership.enter(1, _entry(1))
  membership.close(1)  # which it is
  state = membership.read()
  assert (state.round, state.elastic_group) == (1, (0, 2))
  assert [entry.port for entry in state.entries] == [10, 0, 12]
  assert not state.has_begun
  membership.note_begun()
  membership.enter(1, _entry(2))
  membership.close(2)
  state = membership.read()
  assert (state.round, state.elastic_group, state.has_begun) == (2, (1,), True)


def test_holdings_are_handed_on_whatever_their_types():
  def holdings(fill):
    made = local_state_lib.LocalState()
    made.variables += [
      tf.Variable(tf.fill([3, 2], float(fill)), name='a'),
      tf.Variable(tf.constant(fill, tf.int64), name='b'),
      tf.Variable(tf.constant([fill > 0] * 3), name='c'),
    ]
    return made

  some, others = holdings(0), holdings(7)
  assert some.digest() == others.digest()
  some.unpack(others.packed())
  for own, other in zip(some.variables, others.variables, strict=True):
    np.testing.assert_array_equal(own.numpy(), other.numpy())
  others.variables.pop()
  assert some.digest() != others.digest()


def _peers():
  tasks = [spec_lib.Task('worker', i) for i in range(2)]
  return [group_monitor.Peer(task, 'localhost:1') for task in tasks]


def test_who_leaves_waits_for_a_member_that_copies_its_variables():
  phases = [generations.READY, generations.RUNNING, generations.RUNNING]
  places = [0, 7, 8]
  seen = []

  class Notices:
    def entries(self, number):
      del number
      seen.append(len(seen))
      entry = generations.Entry(phase=phases[seen[-1]], place=places[seen[-1]])
      return {1: entry}

  others_lib.Others(_peers(), 0, Notices()).wait_until_at([0, 1], 8, 60)
  assert seen == [0, 1, 2]


def test_a_worker_knows_by_itself_how_far_the_group_was(monkeypatch):
  member = membership_lib.Membership(
    _peers(),
    1,
    local_state_lib.LocalState(),
    reduction_lib.Reduction(1, 2),
    tf.Variable(7, dtype=tf.int64),
    config=None,
    waits=group_monitor.Waits.of(1, 1, 1),
    tell=lambda kind, tasks: None,
  )

  def no_state():
    raise tf.errors.UnavailableError(None, None, 'The leader has ended.')

  monkeypatch.setattr(member, '_begin', lambda: None)
  monkeypatch.setattr(member._notices, 'state', no_state)
  assert member.place() == 7


@pytest.mark.parametrize(
  ('ready', 'finished', 'wanted'),
  [
    ((3, 2, 3), False, (2, (0, 1, 2), False, False)),
    ((3, 0, 4), True, (3, (0, 2), False, True)),
    ((0, 0, 0), False, (0, (), False, False)),
    ((0, 0, 0), True, (0, (), True, False)),
  ],
  ids=['all', 'some', 'nobody', 'done'],
)
def test_those_who_have_batches_do_as_many_steps(ready, finished, wanted):
  said = [
    agreements.facts(
      number,
      finished=finished,
      requests_change=i == 1,
      index=i,
      num_workers=len(ready),
    )
    for i, number in enumerate(ready)
  ]
  found = agreements.of(sum(said))
  assert found.is_change_requested
  assert wanted == (
    found.number,
    found.members,
    found.finished,
    found.is_partial,
  )
