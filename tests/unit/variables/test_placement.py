import itertools
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from tfps.cluster import spec as spec_lib
from tfps.variables import placement
from tfps.variables import placement_ledger

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
  ledger = placement_ledger.PlacementLedger(policy, num_ps)
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
  ledger = placement_ledger.PlacementLedger(
    placement.ByteBalanced(num_slots=2), 2
  )
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
  ledger = placement_ledger.PlacementLedger(placement.ByteBalanced(), 2)
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
  assert placement_ledger.ps_index(device) == index


def test_the_report_tells_the_bytes_of_replicas():
  ledger = placement_ledger.PlacementLedger(
    placement.ByteBalanced(), 3, replicas=1
  )
  for ps, num_bytes in enumerate([3000, 1000, 200]):
    ledger.note(f'v{ps}', num_bytes, ps=ps)
  report = ledger.report()
  assert report.num_bytes == (3000, 1000, 200)
  assert report.replica_bytes == (200, 3000, 1000)
  assert report.imbalance == pytest.approx(4000 / 2800)
  assert str(report).splitlines() == [
    'task     variables           bytes        replicas',
    'ps:0             1           3,000             200',
    'ps:1             1           1,000           3,000',
    'ps:2             1             200           1,000',
    'fullest over average: 1.429',
  ]


# The hosts of ps and of workers, and how much more a rack's link carries than a
# host's.
_PLACES = {
  'apart': (['a', 'b'], ['c', 'd'], None),
  'each ps with a worker': (['a', 'b'], ['a', 'b'], None),
  'one ps with all workers': (['a', 'b'], ['a', 'a'], None),
  'one ps with one of four workers': (['a', 'b'], ['a', 'c', 'd', 'e'], None),
  'one ps beside the workers': (['a', 'b'], ['c', 'd'], 1.0),
  'three ps, one of them beside': (['a', 'b', 'd'], ['c', 'c', 'e'], 2.0),
  'one host': (['a', 'a'], ['a'], None),
}
_RACKS = {'a': 'x', 'b': 'y', 'c': 'x', 'd': 'x', 'e': 'y'}


def _cluster(ps, workers):
  jobs = {'ps': ps, 'worker': workers}
  return spec_lib.Cluster(
    {
      job: [f'{host}:{port + i}' for i, host in enumerate(hosts)]
      for (job, hosts), port in zip(jobs.items(), (1, 100), strict=True)
    }
  )


def _aware(ps, workers, rack_rate, **kwargs):
  rack_of = None if rack_rate is None else _RACKS
  policy = placement.TopologyAware(
    rack_of=rack_of, rack_rate=rack_rate, **kwargs
  )
  return policy.within(_cluster(ps, workers))


def _busiest(links, sizes, chosen, rack_rate):
  """What the most loaded link carries, in terms of a host's rate."""
  num_bytes = [0] * links.num_ps
  for size, ps in zip(sizes, chosen, strict=True):
    num_bytes[ps] += size
  return max(
    (
      n / (rack_rate or 1.0) if link.kind == 'rack' else n
      for link, n in links.of(num_bytes).items()
    ),
    default=0.0,
  )


@pytest.mark.parametrize('place', _PLACES.values(), ids=_PLACES)
@hypothesis.given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6))
@hypothesis.settings(max_examples=25, deadline=None)
def test_the_most_loaded_link_is_near_the_best(place, sizes):
  ps, _, rack_rate = place
  policy = _aware(*place)
  chosen = policy.assign(sizes, loads([0] * len(ps)))
  least = min(
    _busiest(policy.links, sizes, other, rack_rate)
    for other in itertools.product(range(len(ps)), repeat=len(sizes))
  )
  found = _busiest(policy.links, sizes, chosen, rack_rate)
  assert found <= 4 / 3 * least + 1e-6


@pytest.mark.parametrize('place', _PLACES.values(), ids=_PLACES)
def test_equal_shards_load_links_as_little_as_can_be(place):
  ps, _, rack_rate = place
  policy = _aware(*place)
  sizes = [8] * 6
  found = policy.assign(sizes, loads([0] * len(ps)))
  least = min(
    _busiest(policy.links, sizes, other, rack_rate)
    for other in itertools.product(range(len(ps)), repeat=len(sizes))
  )
  assert _busiest(policy.links, sizes, found, rack_rate) == least


@hypothesis.given(sizes=sizes, num_ps=num_ps)
@hypothesis.settings(deadline=None)
def test_where_all_are_as_far_bytes_are_balanced(sizes, num_ps):
  apart = _aware([f'p{i}' for i in range(num_ps)], ['w0', 'w1'], None)
  balanced = placement.ByteBalanced()
  assert one_by_one(apart, sizes, num_ps) == one_by_one(balanced, sizes, num_ps)
  together = loads([0] * num_ps)
  assert apart.assign(sizes, together) == balanced.assign(sizes, together)


def test_a_ps_with_most_workers_holds_everything():
  policy = _aware(['a', 'b'], ['a', 'a', 'a', 'b'], None)
  assert one_by_one(policy, [5, 5, 5], 2) == [0, 0, 0]


def test_a_ps_with_one_of_many_workers_holds_less():
  policy = _aware(['a', 'b'], ['a', 'c', 'd', 'e'], None)
  sizes = [1] * 100
  chosen = policy.assign(sizes, loads([0, 0]))
  # Host a: 100 + 2 x, host b: 4 (100 - x).
  assert chosen.count(0) == 50
  assert _busiest(policy.links, sizes, chosen, None) == 200


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'num_slots': -1}, 'num_slots is -1'),
    ({'rack_rate': 0.0}, 'rack_rate is 0.0'),
    ({'rack_of': {'a': 'x'}}, 'rack_rate is None. Give both'),
    ({'rack_rate': 2.0}, 'rack_of is None'),
  ],
)
def test_a_topology_that_cannot_be_is_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    placement.TopologyAware(**kwargs)


def test_a_topology_takes_a_cluster():
  with pytest.raises(ValueError, match='does not know the cluster yet'):
    placement.TopologyAware().assign([1], loads([0]))
  balanced = placement.ByteBalanced()
  assert placement.within(balanced, _cluster(['a'], ['b'])) is balanced


def test_the_report_tells_the_busiest_link():
  policy = _aware(['a', 'b'], ['a', 'c'], None)
  ledger = placement_ledger.PlacementLedger(policy, 2)
  ledger.note('table', 3000, ps=1)
  ledger.note_colocated('slot', 3000, ps=1)  # which does not cross
  report = ledger.report()
  assert report.links['host b, up'] == 6000
  assert report.links['host a, down'] == 3000
  last = str(report).splitlines()[-1]
  assert last == 'busiest link: host b, down, 6,000 bytes'
