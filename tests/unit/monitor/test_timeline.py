"""Traces from profiles, whose clocks may differ."""

import pytest

from tests.support import traced
from tfps.monitor import timeline


def test_a_tensor_is_received_by_the_node_after_that_which_sent_it():
  profiles = {
    'ps:0': traced.profile(*traced.sent('worker:1', 'a/_4', 10)),
    'worker:0': traced.profile(traced.received('a/_5', 20)),
    'worker:1': traced.profile(
      traced.received('a/_5', 21), traced.received('a/_7', 21)
    ),
  }
  (found,) = timeline.transfers(profiles)
  assert (found.sender, found.receiver) == ('ps:0', 'worker:1')
  assert found.sent.start_ns == 10
  assert found.received.start_ns == 21


def test_tensors_of_a_loop_are_received_in_the_order_of_their_sends():
  profiles = {
    'ps:0': traced.profile(
      *traced.sent('worker:0', 'a/_4', 30), *traced.sent('worker:0', 'a/_4', 10)
    ),
    'worker:0': traced.profile(
      traced.received('a/_5', 40), traced.received('a/_5', 20)
    ),
  }
  found = timeline.transfers(profiles)
  assert [(e.sent.start_ns, e.received.start_ns) for e in found] == [
    (10, 20),
    (30, 40),
  ]


def test_a_step_of_which_a_part_is_missing_has_no_transfers():
  profiles = {
    'ps:0': traced.profile(
      *traced.sent('worker:0', 'a/_4', 10),
      *traced.sent('worker:0', 'a/_4', 30, step=8),
    ),
    'worker:0': traced.profile(
      traced.received('a/_5', 15),
      traced.received('a/_5', 20),
      traced.received('a/_5', 40, step=8),
    ),
  }
  (found,) = timeline.transfers(profiles)
  assert found.sent.start_ns == 30


@pytest.mark.parametrize('ahead_ns', [-1e9, 0.0, 5e6])
def test_clocks_of_machines_are_brought_together(ahead_ns):
  profiles = {
    'ps:0': traced.profile(
      *traced.sent('worker:0', 'a/_4', 100), traced.received('b/_3', 290)
    ),
    'worker:0': traced.profile(
      traced.received('a/_5', 140 + ahead_ns),
      *traced.sent('ps:0', 'b/_2', 250 + ahead_ns),
      host='two',
    ),
  }
  found = timeline.clocks(profiles, timeline.transfers(profiles))
  assert found == {'one': 0.0, 'two': pytest.approx(ahead_ns, abs=1e-3)}
  events = timeline.trace(profiles, timeline.transfers(profiles))['traceEvents']
  starts = {e['name']: e['ts'] for e in events if e['ph'] == 'X'}
  assert starts['b/_2:_Send'] - starts['a/_4:_Send'] == pytest.approx(0.15)


def test_a_clock_that_nothing_tells_is_taken_as_it_is():
  profiles = {
    'ps:0': traced.profile(*traced.sent('worker:0', 'a/_4', 100)),
    'worker:0': traced.profile(traced.received('a/_5', 50), host='two'),
  }
  assert timeline.clocks(profiles, timeline.transfers(profiles)) == {'one': 0.0}
  assert timeline.trace(profiles, timeline.transfers(profiles))['traceEvents']


def test_no_profiles_are_an_empty_trace():
  assert timeline.trace({}, [])['traceEvents'] == []
