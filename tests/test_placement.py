import itertools
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from tfps import _ledger
from tfps import placement

UNEVEN = [1_000_000, 10, 10, 1_000_000, 10, 10]

sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=7)
num_ps = st.integers(1, 3)


def loads(num_bytes):
  return [placement.Load(n, 1 if n else 0) for n in num_bytes]


def fullest(sizes, chosen, num_ps):
  return max(
    sum(size for size, ps in zip(sizes, chosen, strict=True) if ps == p)
    for p in range(num_ps)
  )


def best(sizes, num_ps):
  """The fullest ps of the best of all placements."""
  return min(
    fullest(sizes, chosen, num_ps)
    for chosen in itertools.product(range(num_ps), repeat=len(sizes))
  )


def one_by_one(policy, sizes, num_ps):
  ledger = _ledger.Ledger(policy, num_ps)
  return [ledger.place([size], trainable=True)[0] for size in sizes]


def test_large_variables_do_not_meet():
  chosen = one_by_one(placement.ByteBalanced(), UNEVEN, 3)
  assert fullest(UNEVEN, chosen, 3) <= 1.01 * best(UNEVEN, 3)
  dealt = one_by_one(placement.RoundRobin(), UNEVEN, 3)
  assert fullest(UNEVEN, dealt, 3) == 2_000_000


@hypothesis.given(sizes=sizes, num_ps=num_ps)
def test_together_is_within_the_bound_of_largest_first(sizes, num_ps):
  chosen = placement.ByteBalanced().assign(sizes, loads([0] * num_ps))
  bound = 4 / 3 - 1 / (3 * num_ps)
  assert fullest(sizes, chosen, num_ps) <= bound * best(sizes, num_ps) + 1e-6


@hypothesis.given(sizes=sizes, num_ps=num_ps)
def test_one_by_one_is_within_the_bound_of_any_order(sizes, num_ps):
  chosen = one_by_one(placement.ByteBalanced(), sizes, num_ps)
  bound = 2 - 1 / num_ps
  assert fullest(sizes, chosen, num_ps) <= bound * best(sizes, num_ps) + 1e-6


def test_the_bounds_are_reached():
  largest_first = [5, 5, 4, 4, 3, 3, 3]
  chosen = placement.ByteBalanced().assign(largest_first, loads([0] * 3))
  assert fullest(largest_first, chosen, 3) == 11
  assert best(largest_first, 3) == 9
  unlucky = [1, 1, 1, 1, 1, 1, 3]
  chosen = one_by_one(placement.ByteBalanced(), unlucky, 3)
  assert fullest(unlucky, chosen, 3) == 5
  assert best(unlucky, 3) == 3


@pytest.mark.parametrize(
  'policy',
  [placement.ByteBalanced(num_slots=2), placement.RoundRobin()],
  ids=str,
)
def test_many_variables_get_the_same_places_again(policy):
  many = [random.Random(7).randrange(10**6) for _ in range(1000)]
  assert one_by_one(policy, many, 10) == one_by_one(policy, many, 10)


def test_ties_go_to_fewer_variables_then_to_the_lower_index():
  policy = placement.ByteBalanced()
  assert one_by_one(policy, [8] * 6, 3) == [0, 1, 2, 0, 1, 2]
  tied = [placement.Load(8, 3), placement.Load(8, 2), placement.Load(8, 2)]
  assert policy.assign([1], tied) == [1]
  assert one_by_one(policy, [0, 0, 0], 2) == [0, 1, 0]


def test_shards_of_one_size_are_dealt_out_in_the_order_of_the_ps():
  policy = placement.ByteBalanced()
  assert policy.assign([8] * 5, loads([0, 0])) == [0, 1, 0, 1, 0]
  assert policy.assign([24, 24], loads([48, 32])) == [0, 1]
  assert policy.assign([8, 24, 8, 24], loads([9, 0, 8])) == [0, 1, 0, 2]


def test_what_is_there_already_counts():
  assert placement.ByteBalanced().assign([10, 60], loads([50, 0])) == [0, 1]


@hypothesis.given(sizes=sizes, num_ps=num_ps)
def test_round_robin_deals_in_turn(sizes, num_ps):
  turns = [i % num_ps for i in range(len(sizes))]
  policy = placement.RoundRobin()
  assert one_by_one(policy, sizes, num_ps) == turns
  assert policy.assign(sizes, loads([0] * num_ps)) == turns


def test_room_is_kept_for_the_slots_of_trainable_variables():
  ledger = _ledger.Ledger(placement.ByteBalanced(num_slots=2), 2)
  assert ledger.place([100], trainable=True) == [0]  # 300 with its slots
  assert ledger.place([250], trainable=False) == [1]
  assert ledger.place([40], trainable=False) == [1]
  assert ledger.place([20], trainable=False) == [1]
  assert ledger.place([1], trainable=False) == [0]
  for slot in range(2):
    ledger.note_colocated(f'slot_{slot}', 100, ps=0)
  assert ledger.place([1], trainable=False) == [0]  # slots were counted once
  ledger.note_colocated('a third slot', 100, ps=0)
  assert ledger.place([1], trainable=False) == [1]


def test_the_report_tells_bytes_names_and_imbalance():
  ledger = _ledger.Ledger(placement.ByteBalanced(), 2)
  assert ledger.report().imbalance == 1
  ledger.note('table', 3000, ps=0)
  ledger.note('bias', 1000, ps=1)
  report = ledger.report()
  assert report.num_bytes == (3000, 1000)
  assert report.variables == (('table',), ('bias',))
  assert report.imbalance == 1.5
  assert str(report).splitlines() == [
    'task     variables           bytes',
    'ps:0             1           3,000',
    'ps:1             1           1,000',
    'fullest over average: 1.500',
  ]


def test_a_negative_number_of_slots_is_refused():
  with pytest.raises(ValueError, match='num_slots is -1'):
    placement.ByteBalanced(num_slots=-1)


@pytest.mark.parametrize(
  ('device', 'index'),
  [
    ('/job:ps/replica:0/task:3/device:CPU:0', 3),
    ('/job:worker/task:3/device:CPU:0', None),
    ('', None),
  ],
)
def test_the_index_of_a_ps_is_in_its_devices(device, index):
  assert _ledger.ps_index(device) == index
