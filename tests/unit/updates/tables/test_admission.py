"""Keys that get a row once they have been looked up often enough."""

import collections

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.support import key_tables
from tests.support import turns
import tfps
from tfps.updates.tables import counts as counts_lib

pytestmark = pytest.mark.slow

_embeddings = tfps.embeddings
_BATCHES = st.lists(
  st.lists(st.integers(-5, 10), min_size=1, max_size=8, unique=True),
  min_size=1,
  max_size=12,
)


@pytest.fixture(scope='module')
def tables():
  made = {
    name: key_tables.Table(admission=policy)
    for name, policy in {
      'exact': _embeddings.Counter(3),
      'bloom': _embeddings.BloomCounter(3, 1e-6, 1000),
    }.items()
  }
  return {name: (table, table.values()) for name, table in made.items()}


@pytest.mark.parametrize(
  'name', turns.rarely(['exact', 'bloom'], but=['exact'])
)
def test_the_look_up_of_that_number_makes_the_row(tables, name):
  table, empty = tables[name]

  @settings(deadline=None, max_examples=30)
  @given(batches=_BATCHES)
  def check(batches):
    table.restore(empty)
    counted = collections.Counter()
    refused = 0
    for batch in batches:
      counted.update(batch)
      refused += sum(counted[key] < 3 for key in batch)
      found = table.insert(batch)
      assert (found >= 0).tolist() == [counted[key] >= 3 for key in batch]
      assert table.insert([]).tolist() == []
    admitted = {key for key, number in counted.items() if number >= 3}
    assert table.present(range(-5, 11)) == admitted
    assert table.count(counts_lib.Count.REFUSED) == refused

  check()


def test_counts_of_candidates_are_restored_and_their_memory_is_used_again():
  table = key_tables.Table(admission=_embeddings.Counter(3))
  table.insert([1, 2])
  table.insert([1, 2])
  earlier = table.values()
  assert (table.insert([1, 2]) >= 0).all()
  for key in range(10, 30):
    for _ in range(3):
      table.insert([key])
  used = table.variables['candidate_counts'].numpy()[counts_lib.Count.USED]
  assert used == counts_lib.NUM_INITIAL + 2
  table.restore(earlier)
  assert table.present([1, 2]) == set()
  assert (table.insert([2, 1]) >= 0).all()


def test_a_bloom_filter_admits_as_few_too_early_as_it_was_made_for():
  table = key_tables.Table(
    admission=_embeddings.BloomCounter(2, 0.02, capacity=20_000)
  )
  keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 22_000)
  for part in np.split(keys[:20_000], 20):
    table.insert(part)
  early = (table.insert(keys[20_000:]) >= 0).mean()
  assert 0.005 < early < 0.03
  assert (table.insert(keys[:20_000]) >= 0).all()  # none too late


def test_a_key_is_admitted_by_chance():
  tf.random.set_seed(1)
  table = key_tables.Table(admission=_embeddings.Probability(0.25))
  keys = np.arange(20_000)
  assert 0.23 < (table.insert(keys) >= 0).mean() < 0.27
  assert 0.41 < (table.insert(keys) >= 0).mean() < 0.47


@pytest.mark.exhaustive
def test_evicted_keys_are_counted_anew():
  table = key_tables.Table(
    admission=_embeddings.Counter(2), eviction=_embeddings.Lru(1)
  )
  for key in (1, 1, 2, 2):
    table.insert([key])
  assert table.present([1, 2]) == {2}
  assert table.insert([1]).tolist() == [-1]
  table.insert([1])
  assert table.present([1, 2]) == {1}


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: _embeddings.Counter(0), r'Counter\(min_count=0\): min_count is'),
    (lambda: _embeddings.BloomCounter(256), 'at most 255'),
    (lambda: _embeddings.BloomCounter(2, 0.0), 'between 0 and 1'),
    (lambda: _embeddings.BloomCounter(2, 0.1, 0), 'capacity is positive'),
    (lambda: _embeddings.Probability(0), 'above 0 and at most 1'),
    (lambda: _embeddings.Probability(1.1), 'above 0 and at most 1'),
  ],
)
def test_settings_out_of_range_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
