"""Tables that are restored into other numbers of shards, without any server."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import key_tables
from tests.support import turns
import tfps
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import index as index_lib
from tfps.updates.tables import resharding
from tfps.updates.tables import saved_shards
from tfps.variables import growing
from tfps.variables import row_writes

pytestmark = pytest.mark.slow

_embeddings = tfps.embeddings
_KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 500)
_ALL_NUMBERS = turns.rarely([(3, 2), (3, 1), (1, 3), (2, 5)], but=[(1, 3)])
_NUMBERS = turns.rarely([(3, 2), (1, 3)], but=[(1, 3)])


class _Tables:
  """Shards of a table, each of which gets the keys that belong to it."""

  def __init__(self, number, **policies):
    self.all = [key_tables.Table(number, **policies) for _ in range(number)]
    self.shards = [table.shard for table in self.all]

  def parts(self, keys):
    places = index_lib.shard_of(tf.constant(keys, tf.int64), len(self.all))
    return [
      (table, np.asarray(keys)[places.numpy() == number])
      for number, table in enumerate(self.all)
    ]

  def insert(self, keys):
    for table, own in self.parts(keys):
      table.insert(own)

  def present(self, keys):
    return set().union(
      *(table.present(own.tolist()) for table, own in self.parts(keys))
    )

  def read(self, keys):
    found = {}
    for table, own in self.parts(keys):
      found.update(zip(own.tolist(), table.read(own).tolist(), strict=True))
    return found

  def train(self, keys):
    """Changes the rows of keys as an update would."""
    for table, own in self.parts(keys):
      rows = table.find(own) % 2**40
      values = np.stack([own % 1000, own % 7], axis=1)
      table.variables['rows'].scatter_update(
        tf.IndexedSlices(tf.constant(values, tf.float32), rows)
      )

  def addresses(self, keys):
    return [(table, own, table.find(own)) for table, own in self.parts(keys)]

  def count(self, count):
    return [table.count(count) for table in self.all]

  def saved(self):
    return [saved_shards.view(shard) for shard in self.shards]

  def resharded(self, number, **policies):
    other = _Tables(number, **policies)
    resharding.restore(other.shards, self.saved())
    return other


@pytest.fixture(autouse=True)
def _slice_bytes(monkeypatch):
  monkeypatch.setattr(row_writes, 'SLICE_BYTES', 600)  # bytes of 75 rows


@pytest.mark.parametrize(('old', 'new'), _ALL_NUMBERS)
def test_each_key_has_its_row_in_its_new_shard(old, new):
  tables = _Tables(old)
  tables.insert(_KEYS[:400])
  tables.train(_KEYS[:400])
  other = tables.resharded(new)
  assert other.present(_KEYS) == set(_KEYS[:400].tolist())
  assert other.read(_KEYS) == tables.read(_KEYS)
  used = other.count(counts_lib.Count.USED)
  assert sum(used) - new * counts_lib.NUM_INITIAL == 400
  other.insert(_KEYS)
  assert other.present(_KEYS) == set(_KEYS.tolist())


def test_what_the_table_had_before_is_gone():
  tables, other = _Tables(2), _Tables(3)
  tables.insert(_KEYS[:100])
  tables.train(_KEYS[:100])
  other.insert(_KEYS[50:300])
  other.train(_KEYS[50:300])
  for _ in range(2):  # again, as it may be repeated
    resharding.restore(other.shards, tables.saved())
    assert other.present(_KEYS) == set(_KEYS[:100].tolist())
    assert other.read(_KEYS) == tables.read(_KEYS)


@pytest.mark.parametrize(('old', 'new'), _NUMBERS)
@pytest.mark.parametrize(
  'admission',
  [
    _embeddings.Counter(3),
    pytest.param(
      _embeddings.BloomCounter(3, 1e-6, 2000), marks=pytest.mark.exhaustive
    ),
  ],
  ids=['exact', 'bloom'],
)
def test_keys_that_were_counted_are_admitted_when_they_would_have_been(
  old, new, admission
):
  tables = _Tables(old, admission=admission)
  for first in (0, 100, 200):  # later keys more often
    tables.insert(_KEYS[first:400])
  other = tables.resharded(new, admission=admission)
  assert other.present(_KEYS) == set(_KEYS[200:400].tolist())
  other = other.resharded(3, admission=admission)  # and back, or on
  assert sum(other.count(counts_lib.Count.REFUSED)) == 700
  other.insert(_KEYS)
  assert other.present(_KEYS) == set(_KEYS[100:400].tolist())
  other.insert(_KEYS)
  assert other.present(_KEYS) == set(_KEYS[:400].tolist())
  other.insert(_KEYS)
  assert other.present(_KEYS) == set(_KEYS.tolist())


@pytest.mark.exhaustive
def test_a_bloom_filter_admits_no_more_too_early_in_other_shards(monkeypatch):
  monkeypatch.setattr(row_writes, 'SLICE_BYTES', 10_000)
  admission = _embeddings.BloomCounter(2, 0.02, capacity=20_000)
  keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 22_000)
  tables = _Tables(8, admission=admission)
  for part in np.split(keys[:20_000], 4):
    tables.insert(part)
  other = tables.resharded(2, admission=admission)
  other.insert(keys[20_000:])
  assert 0.005 < len(other.present(keys[20_000:])) / 2000 < 0.03


@pytest.mark.exhaustive
@pytest.mark.parametrize(('old', 'new'), _NUMBERS)
def test_the_age_of_keys_in_look_ups_is_kept(old, new):
  eviction = _embeddings.Ttl(steps=16)
  tables = _Tables(old, eviction=eviction)
  first, second, others = _KEYS[:50], _KEYS[50:100], _KEYS[200:210]
  tables.insert(first)
  for _ in range(8):
    tables.insert(second)
  other = tables.resharded(new, eviction=eviction)
  for _ in range(7):
    other.insert(others)
  assert other.present(_KEYS[:100]) == set(_KEYS[:100].tolist())
  for _ in range(3):  # expired keys are looked for after each second look-up
    other.insert(others)
  assert other.present(_KEYS[:100]) == set(second.tolist())
  assert sum(other.count(counts_lib.Count.EVICTED)) == 50


@pytest.mark.parametrize(('old', 'new'), _NUMBERS)
def test_scores_are_kept_and_evicted_keys_are_counted_in_sum(old, new):
  eviction = _embeddings.Lfu(capacity=300)
  tables = _Tables(old, eviction=eviction)
  for keys in (_KEYS[:100], _KEYS[:100], _KEYS[:300], _KEYS[300:400]):
    tables.insert(keys)
  evicted = sum(tables.count(counts_lib.Count.EVICTED))
  assert evicted >= 100
  present = tables.present(_KEYS[:400])
  other = tables.resharded(new, eviction=eviction)
  assert other.present(_KEYS[:400]) == present
  assert sum(other.count(counts_lib.Count.EVICTED)) == evicted
  assert _scores(other, present) == _scores(tables, present)
  assert sum(other.count(counts_lib.Count.FREE)) == 0


def _scores(tables, keys):
  return {
    key: table.variables['scores'].numpy()[address % 2**40]
    for table, own, addresses in tables.addresses(list(keys))
    for key, address in zip(own.tolist(), addresses, strict=True)
  }


@pytest.mark.parametrize(
  ('old', 'new'),
  turns.rarely(
    [
      (_embeddings.Lfu(900), _embeddings.Ttl(secs=1e6)),
      (_embeddings.Lfu(900), _embeddings.Ttl(steps=4)),
      (_embeddings.Ttl(secs=1e6), _embeddings.Ttl(steps=4)),
      (_embeddings.Ttl(steps=900), _embeddings.Lfu(900)),
      (_embeddings.Ttl(steps=900), _embeddings.Lru(900)),
    ],
    but=[(_embeddings.Lfu(900), _embeddings.Ttl(steps=4))],
  ),
)
def test_scores_of_another_unit_begin_anew(old, new):
  tables, other = _Tables(3, eviction=old), _Tables(1, eviction=new)
  for keys in (_KEYS[:300], _KEYS[:100], _KEYS[:100]):
    tables.insert(keys)
  other.all[0].variables['scores'][:1024].assign([9] * 1024)  # any other unit
  resharding.restore(other.shards, tables.saved())
  present = set(_KEYS[:300].tolist())
  before = set(_scores(tables, present).values())
  other.insert(_KEYS[:1])
  assert other.present(_KEYS) == present
  assert not before & set(_scores(other, present).values())
  for _ in range(5):
    other.insert(_KEYS[300:])
  kept = set(_KEYS[300:].tolist())
  kept |= set() if new == _embeddings.Ttl(steps=4) else present
  assert other.present(_KEYS) == kept


@pytest.mark.parametrize(('old', 'new'), _NUMBERS)
def test_slots_follow_their_keys(old, new):
  eviction = _embeddings.Lru(capacity=150)
  tables = _Tables(old, eviction=eviction)
  tables.insert(_KEYS[:200])
  slots = [_slot(table, own) for table, own in tables.parts(_KEYS[:200])]
  for keys in (_KEYS[:50], _KEYS[200:260]):  # evicts, and uses rows again
    tables.insert(keys)
  present = tables.present(_KEYS)
  expected = {
    key: 7.0
    if address >= 2**40 or address >= len(slot.numpy())
    else slot.numpy()[address, 0]
    for slot, (_, own, addresses) in zip(
      slots, tables.addresses(list(present)), strict=True
    )
    for key, address in zip(own.tolist(), addresses, strict=True)
  }
  assert 0 < list(expected.values()).count(7.0) < len(expected)

  other = tables.resharded(new, eviction=eviction)
  made = [_slot(table, []) for table in other.all]
  saved = [
    saved_shards.view_slots(shard, {'m': slot})
    for shard, slot in zip(tables.shards, slots, strict=True)
  ]
  resharding.restore_slots(made, other.shards, saved, 'm')
  assert {
    key: slot.numpy()[address, 0]
    for slot, (_, own, addresses) in zip(
      made, other.addresses(list(present)), strict=True
    )
    for key, address in zip(own.tolist(), addresses, strict=True)
  } == expected


def _slot(table, keys):
  """Makes a slot that begins with sevens, and has a value for each key."""
  found = table.find(keys) % 2**40
  rows = np.zeros([max(1024, *(found + 1), 0), 2], 'f')
  rows[:1024] = 7
  rows[found] = (np.asarray(keys) % 1000)[:, None]
  return growing.opened(tf.Variable(rows))


def test_slots_without_their_table_are_refused():
  tables, other = _Tables(2), _Tables(1)
  tables.insert(_KEYS[:10])
  other.insert(_KEYS[10:20])
  slots = [_slot(table, own) for table, own in tables.parts(_KEYS[:10])]
  saved = [
    saved_shards.view_slots(shard, {'m': slot})
    for shard, slot in zip(tables.shards, slots, strict=True)
  ]
  with pytest.raises(ValueError, match='none of the 10 keys'):
    resharding.restore_slots(
      [_slot(other.all[0], [])], other.shards, saved, 'm'
    )


@pytest.mark.parametrize(
  ('policies', 'width', 'message'),
  [
    ({'eviction': _embeddings.Lru(10)}, 2, 'has no scores'),
    ({'admission': _embeddings.Counter(2)}, 2, 'has no candidate_counts'),
    ({}, 3, r'rows of the saved table are \(2,\), and those of this one'),
  ],
  ids=['eviction', 'admission', 'width'],
)
def test_what_does_not_fit_is_refused(policies, width, message):
  other = key_tables.Table(width=width, **policies)
  with pytest.raises(ValueError, match=message):
    resharding.restore([other.shard], _Tables(2).saved())


@pytest.mark.parametrize(
  'other',
  [_embeddings.BloomCounter(2, 0.001, 100), _embeddings.BloomCounter(2)],
  ids=['rate', 'capacity'],
)
def test_filters_of_another_size_are_refused(other):
  admission = _embeddings.BloomCounter(2, 0.01, 100)
  tables = _Tables(2, admission=admission)
  message = r'BloomCounter\(.*another false_positive_rate or capacity'
  for saved in (tables, tables.resharded(1, admission=admission)):
    with pytest.raises(ValueError, match=message):
      saved.resharded(3, admission=other)
  # As a checkpoint of the same shards does, whose variables have the names.
  table = key_tables.Table(2, admission=other)
  table.restore(tables.all[0].values())
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    table.insert([1])


def test_a_filter_admits_later_or_sooner_after_a_restore():
  tables = _Tables(1, admission=_embeddings.BloomCounter(3, 1e-6, 100))
  tables.insert(_KEYS[:10])
  other = tables.resharded(1, admission=_embeddings.BloomCounter(2, 1e-6, 100))
  other.insert(_KEYS[:10])
  assert other.present(_KEYS) == set(_KEYS[:10].tolist())
