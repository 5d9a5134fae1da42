"""Keys that are evicted, and rows that are given to others."""

import itertools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.support import key_tables
from tests.support import turns
import tfps
from tfps.updates import apply
from tfps.updates import rules
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import eviction as eviction_lib
from tfps.variables import growing

pytestmark = pytest.mark.slow

_Count = counts_lib.Count
_BATCHES = st.lists(
  st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True),
  min_size=1,
  max_size=12,
)
_ALL = list(range(31))
_CAPACITY = 6


class _Model:
  """Keys of a table, and when and how often each was looked up."""

  def __init__(self, table):
    self.table = table
    self.empty = table.values()

  def renew(self):
    self.table.restore(self.empty)
    self.present, self.last, self.uses, self.first = set(), {}, {}, {}
    self.num_evicted = 0

  def look_up(self, now, batch):
    """Looks keys up; returns which were evicted, and which may have been."""
    for key in batch:
      if key not in self.present:
        self.uses[key], self.first[key] = 0, now
      self.uses[key] += 1
      self.last[key] = now
    before = self.present | set(batch)
    addresses = self.table.insert(batch)
    assert (addresses >= 0).all()
    self.present = self.table.present(_ALL)
    assert set(batch) <= self.present <= before
    evicted = before - self.present
    self.num_evicted += len(evicted)
    assert self.table.count(_Count.EVICTED) == self.num_evicted
    return evicted, before - set(batch)


@pytest.fixture(scope='module')
def models():
  policies = {
    'lru': tfps.embeddings.Lru(_CAPACITY),
    'lfu': tfps.embeddings.Lfu(_CAPACITY),
    'ttl': tfps.embeddings.Ttl(steps=3),
  }
  return {
    name: _Model(key_tables.Table(eviction=policy))
    for name, policy in policies.items()
  }


@pytest.mark.parametrize('name', turns.rarely(['lru', 'lfu'], but=['lru']))
def test_those_looked_up_longest_ago_or_least_often_are_evicted(models, name):
  model = models[name]
  scores = {'lru': lambda: model.last, 'lfu': lambda: model.uses}[name]

  @settings(deadline=None, max_examples=30)
  @given(batches=_BATCHES)
  def check(batches):
    model.renew()
    for now, batch in enumerate(batches):
      evicted, others = model.look_up(now, batch)
      score = dict(scores())
      too_many = len(others) + len(batch) - _CAPACITY
      assert len(evicted) == min(max(too_many, 0), len(others))
      kept = [score[key] for key in others - evicted]
      if kept and evicted:
        assert max(score[key] for key in evicted) <= min(kept)

  check()


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=30)
@given(batches=_BATCHES)
def test_keys_expire_after_so_many_look_ups(models, batches):
  model = models['ttl']
  model.renew()
  for now, batch in enumerate(batches):
    evicted, others = model.look_up(now, batch)
    assert evicted == {key for key in others if now - model.last[key] >= 3}


def test_keys_expire_after_some_time():
  table = key_tables.Table(eviction=tfps.embeddings.Ttl(secs=0.05))
  table.insert([1])
  while table.present([1]):
    table.insert([2])
  assert table.present([1, 2]) == {2}
  assert table.count(_Count.EVICTED) == 1


def test_memory_is_used_again_and_a_key_that_returns_begins_anew():
  table = key_tables.Table(eviction=tfps.embeddings.Lru(4))
  first = table.read([1])
  slot = growing.opened(tf.Variable(np.full([1, 2], 0.5, 'f')))
  for key in range(1, 40):
    _update(table, slot, table.insert([key]), 1.0)
    table.insert([key])  # once more, known
  assert table.count(_Count.USED) == counts_lib.NUM_INITIAL + 5
  assert table.count(_Count.FREE) == 1
  assert table.count(_Count.LATE) == 0
  _update(table, slot, address := table.insert([1]), 1.0)
  # Adagrad's sum of squares began with 0.5 again: 1 / sqrt(1.5) is taken away.
  np.testing.assert_allclose(table.read([1]), first - 1 / 1.5**0.5, rtol=1e-5)
  row = int(address[0]) & (1 << 40) - 1
  np.testing.assert_allclose(slot.numpy()[row], [1.5, 1.5])
  _update(table, slot, address, 1.0)
  np.testing.assert_allclose(slot.numpy()[row], [2.5, 2.5])


def test_what_comes_for_a_key_that_was_evicted_is_dropped_and_counted():
  table = key_tables.Table(eviction=tfps.embeddings.Lru(1))
  slot = growing.opened(tf.Variable(np.full([1, 2], 0.5, 'f')))
  addresses = table.insert([1])
  table.insert([2])
  table.insert([3])  # in the row of the first
  before = table.read([1, 2, 3])
  _update(table, slot, addresses, 1.0)
  np.testing.assert_array_equal(table.read([1, 2, 3]), before)
  assert table.count(_Count.LATE) == 1


def test_restored_values_have_their_keys_and_free_rows():
  table = key_tables.Table(eviction=tfps.embeddings.Lru(4))
  for key in range(10):
    table.insert([key])
  earlier = table.values()
  present = table.present(range(20))
  addresses = table.find(sorted(present))
  for key in range(10, 20):
    table.insert([key])
  table.restore(earlier)
  assert table.present(range(20)) == present == {6, 7, 8, 9}
  assert table.find(sorted(present)).tolist() == addresses.tolist()
  table.insert([30])
  assert table.count(_Count.USED) == counts_lib.NUM_INITIAL + 5


def test_a_large_table_is_examined_part_by_part():
  table = key_tables.Table(eviction=tfps.embeddings.Lru(100_000))
  hot = np.arange(50)
  for first in range(0, 400_000, 8_000):
    table.insert(np.r_[hot, 1000 + np.arange(first, first + 8_000)])
    number = counts_lib.num_keys(table.shard.counts.numpy())
    assert number <= 100_000 + 8_050
  assert table.present(range(50)) == set(range(50))
  newest = 1000 + np.arange(392_000, 400_000)
  assert (table.find(newest) >= 0).all()
  assert table.count(_Count.EVICTED) + number == 400_050


@pytest.mark.parametrize(
  ('kind', 'capacity'),
  [
    (tfps.embeddings.Lru, 2700),
    (tfps.embeddings.Lfu, 1500),
    (tfps.embeddings.Lru, 100),
  ],
  ids=lambda value: getattr(value, '__name__', value),
)
def test_keys_in_use_outlast_a_capacity_that_is_lowered(
  monkeypatch, kind, capacity
):
  monkeypatch.setattr(eviction_lib, '_WINDOW', 256)
  one = key_tables.Table(eviction=kind(3000))
  keys = np.arange(3000)
  one.insert(keys)
  hot = keys[::60]
  for _ in range(3):
    one.insert(hot)
  other = key_tables.Table(eviction=kind(capacity))
  other.restore(one.values())
  numbers = [3000]
  while numbers[-1] > capacity and len(numbers) < 60:
    other.insert(hot[:1])
    numbers.append(counts_lib.num_keys(other.shard.counts.numpy()))
  assert numbers[-1] <= capacity
  assert numbers[1] > 3000 - 256  # some of each part are kept
  assert other.present(hot.tolist()) == set(hot.tolist())


_EMBEDDINGS = tfps.embeddings
_MANY = {
  'lru': _EMBEDDINGS.Lru(10**6),
  'lfu': _EMBEDDINGS.Lfu(10**6),
  'secs': _EMBEDDINGS.Ttl(secs=1e6),
  'steps': _EMBEDDINGS.Ttl(steps=10**6),
}
_FEW = {
  'lru': _EMBEDDINGS.Lru(20),
  'lfu': _EMBEDDINGS.Lfu(20),
  'steps': _EMBEDDINGS.Ttl(steps=4),
}
_FIRST = counts_lib.NUM_INITIAL


def _used(policy):
  """Returns the variables of a table with 40 keys, the last ones used most."""
  table = key_tables.Table(eviction=policy)
  table.insert(range(40))
  for _ in range(3):
    table.insert(range(30, 40))
  return table.values()


def _scores(table):
  return table.variables['scores'].numpy()[_FIRST : _FIRST + 40]


@pytest.mark.parametrize(
  ('old', 'new'),
  turns.rarely(
    list(itertools.product(_MANY, _MANY)),
    but=[('lfu', 'secs'), ('steps', 'secs'), ('lru', 'secs'), ('lfu', 'lfu')],
  ),
)
@pytest.mark.parametrize('has_unit', [True, False], ids=['', 'without_unit'])
def test_restored_keys_keep_scores_of_the_same_unit_or_get_first_ones(
  old, new, has_unit
):
  saved = _used(_MANY[old])
  if not has_unit:
    saved['scores'][:_FIRST] = 0
  table = key_tables.Table(eviction=_MANY[new])
  table.restore(saved)
  for key in (0, 0, 40):
    table.insert([key])
  assert table.present(range(41)) == set(range(41))
  scores, before = _scores(table), saved['scores'][_FIRST : _FIRST + 40]
  are_alike = old == new or {old, new} == {'lru', 'secs'}
  expected = before if are_alike else np.full(40, scores[1])
  assert are_alike or not np.isin(scores, before[before > 0]).any()
  np.testing.assert_array_equal(scores[1:], expected[1:])


@pytest.mark.parametrize(
  ('old', 'new'),
  turns.rarely(
    [
      *itertools.product(_MANY, ['lru', 'lfu']),
      *itertools.product(_MANY, ['steps']),
    ],
    but=[('lru', 'lfu'), ('secs', 'steps'), ('steps', 'steps')],
  ),
)
def test_keys_restored_under_another_policy_are_evicted_by_it(old, new):
  table = key_tables.Table(eviction=_FEW[new])
  table.restore(_used(_MANY[old]))
  for keys in (range(5), *[range(50, 55)] * 6, [60]):
    table.insert(keys)
  present = table.present(range(61))
  assert set(range(50, 55)) < present
  assert len(present - set(range(50, 55))) == {'steps': 1}.get(new, 15)


def test_keys_without_a_row_leave_the_scores_of_others():
  table = key_tables.Table(
    admission=_EMBEDDINGS.Counter(2), eviction=_EMBEDDINGS.Lfu(10)
  )
  for _ in range(3):
    table.insert([0])
  before = _scores(table)[0]
  table.insert([1, 2])  # are refused
  table.insert([1])
  assert table.present([0, 1, 2]) == {0, 1}
  assert _scores(table)[0] == before


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (
      lambda: tfps.embeddings.Lru(0),
      r'Lru\(capacity=0\): capacity is positive',
    ),
    (lambda: tfps.embeddings.Lfu(-1), 'capacity is positive, not -1'),
    (lambda: tfps.embeddings.Ttl(), 'either secs or steps'),
    (lambda: tfps.embeddings.Ttl(1.0, 2), 'either secs or steps'),
    (lambda: tfps.embeddings.Ttl(0.0), 'secs is positive, not 0.0'),
  ],
)
def test_settings_out_of_range_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def _update(table, slot, addresses, value):
  values = tf.fill([len(addresses), 2], value)
  gradient = tf.IndexedSlices(values, tf.constant(addresses))
  rule = rules.Adagrad(0.0)
  apply.apply(
    [apply.Update(rule, table.shard.rows, [slot], gradient)],
    rules.Step(tf.constant(1.0), 0),
  )
