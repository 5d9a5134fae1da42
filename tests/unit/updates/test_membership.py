"""What workers of an elastic group tell each other."""

import numpy as np
import pytest
import tensorflow as tf

from tfps.updates.allreduce import agreements
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import membership_table as membership_table_lib


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
