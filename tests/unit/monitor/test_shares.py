"""Shares of the time of a trace that tasks compute, send and wait."""

import pytest

from tests.support import traced
from tfps.monitor import shares
from tfps.monitor import timeline

_Part = shares.Part


def _shares(*events, ahead=0):
  """Shares of a worker that gets tensors of a ps from 100 on until 200."""
  profiles = {
    'ps:0': traced.profile(
      *traced.sent('worker:0', 'a/_4', 100),
      *traced.sent('worker:0', 'b/_4', 190),
      traced.received('c/_5', 169),
    ),
    'worker:0': traced.profile(
      traced.received('a/_5', 119 + ahead),
      traced.received('b/_5', 199 + ahead),
      *traced.sent('ps:0', 'c/_4', 160 + ahead),
      *events,
      host='two',
    ),
  }
  return shares.shares(profiles, timeline.transfers(profiles))


def _hundredths(found):
  return {part: round(100 * share) for part, share in found.items() if share}


def test_what_a_task_does_adds_up_to_its_time():
  found = _shares(
    *traced.operation('MatMul', 110, 150),
    *traced.waited('IteratorGetNext', 150, 157),
  )
  assert _hundredths(found['worker:0']) == {
    _Part.COMPUTE: 40,
    _Part.RECEIVE: 20,  # of 30, of which 10 are beside a computation
    _Part.SEND: 10,
    _Part.INPUT: 7,
    _Part.WAIT: 23,
  }
  assert sum(found['worker:0'].values()) == pytest.approx(1)


def test_a_ps_sends_what_a_worker_receives():
  found = _shares()
  assert _hundredths(found['ps:0'])[_Part.SEND] == 30
  assert _hundredths(found['ps:0'])[_Part.RECEIVE] == 10


def test_operations_beside_each_other_count_once():
  alone = _shares(*traced.operation('MatMul', 110, 150))
  both = _shares(
    *traced.operation('MatMul', 110, 150),
    *traced.operation('Unique', 115, 150, thread=2),
  )
  assert alone == both


def test_what_only_moves_tensors_or_is_outside_of_the_time_is_no_computation():
  found = _shares(
    *traced.operation('_Recv', 120, 150),
    *traced.operation('_Send', 120, 150),
    *traced.operation('PartitionedCall', 120, 150),
    *traced.operation('MatMul', 20, 90),
    *traced.operation('MatMul', 210, 290),
    *traced.operation(':Record', 120, 150),
    timeline.Event(3, 'service:Enqueue', 100, 100, {}),
  )
  assert found == _shares()


def test_a_clock_that_is_ahead_changes_nothing():
  # In both ways a tensor takes 10 nanoseconds at least.
  by_one, by_two = _shares(), _shares(ahead=500)
  for task in by_one:
    for part in _Part:
      assert by_one[task][part] == pytest.approx(by_two[task][part], abs=1e-6)


def test_tasks_of_which_no_tensor_is_known_have_no_shares():
  profiles = {'chief:0': traced.profile(*traced.operation('MatMul', 0, 9))}
  assert shares.shares(profiles, timeline.transfers(profiles)) == {}
