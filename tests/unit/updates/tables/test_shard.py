"""Rows of a table by key, without any server."""

import gc
import weakref

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.support import key_tables
from tfps._compat import open_shapes
from tfps._compat import replicated_writes
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import index as index_lib
from tfps.updates.tables import shard as shard_lib
from tfps.variables import growing

pytestmark = pytest.mark.slow

_FIRST = counts_lib.NUM_INITIAL
_KEYS = st.lists(
  st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20, unique=True
)


@pytest.fixture(scope='module')
def emptied():
  table = key_tables.Table()
  empty = table.values()

  def empty_again():
    table.restore(empty)
    return table

  return empty_again


@settings(deadline=None, max_examples=40)
@given(batches=st.lists(_KEYS, min_size=1, max_size=5))
def test_each_key_keeps_its_row(emptied, batches):
  table, rows = emptied(), {}
  for batch in batches:
    before = table.read(batch)
    for key, row in zip(batch, table.insert(batch), strict=True):
      assert rows.setdefault(key, row) == row >= _FIRST
    # Those that were new began with what they had been read as.
    np.testing.assert_array_equal(table.read(batch), before)
  assert sorted(rows.values()) == list(range(_FIRST, _FIRST + len(rows)))
  assert table.find(list(rows)).tolist() == list(rows.values())
  keys = table.shard.values['keys'].numpy()
  assert {key: keys[row] for key, row in rows.items()} == {k: k for k in rows}


def test_rows_are_found_after_any_values_were_restored():
  table = key_tables.Table()
  table.insert([5, 6])
  earlier = table.values()
  table.insert([7, 8])
  other = key_tables.Table()
  other.insert([8, 7])
  other.insert([6, 5])  # as often, so that only the keys tell them apart
  later = other.values()

  table.restore(earlier)
  assert table.find([5, 6]).tolist() == [_FIRST, _FIRST + 1]
  assert table.find([7, 8]).tolist() == [-1, -1]
  table.restore(later)
  found = table.find([5, 6, 7, 8]).tolist()
  assert found == [_FIRST + 3, _FIRST + 2, _FIRST + 1, _FIRST]
  table.insert([9])
  table.restore(earlier)
  assert table.insert([9]).tolist() == [_FIRST + 2]


def test_a_table_that_is_small_grows_by_as_much():
  table = key_tables.Table()
  table.insert(np.arange(1000))
  assert len(table.shard.rows.numpy()) == 2 * (_FIRST + 1000)
  table.insert(np.arange(3000))
  assert len(table.shard.rows.numpy()) == 2 * (_FIRST + 1000)
  assert len(table.shard.values['keys'].numpy()) == 2 * (_FIRST + 1000)
  table.insert(np.arange(3025))
  assert len(table.shard.rows.numpy()) == 2 * (_FIRST + 3025)


def test_a_table_that_is_large_grows_by_an_eighth():
  table = key_tables.Table(width=1024)
  many = 36 << 10  # of 4 KiB each
  table.insert(np.arange(many))
  needed = _FIRST + many
  assert len(table.shard.rows.numpy()) == needed + needed // 8
  assert table.find([many - 1]).tolist() == [needed - 1]


def test_nothing_keeps_a_table_that_is_not_used_any_more():
  table = key_tables.Table()
  table.insert([1, 2])
  rows = weakref.ref(table.shard.rows)
  del table
  gc.collect()
  assert rows() is None


def test_variables_of_another_number_of_shards_are_refused():
  table = key_tables.Table(num_shards=2)
  table.restore(key_tables.Table(num_shards=3).values())
  with pytest.raises(tf.errors.InvalidArgumentError, match='has 2 shards'):
    table.find([1])


@pytest.mark.parametrize('step', [1, 2, 1 << 32, 3 << 61])
def test_keys_of_any_pattern_are_shared_out(step):
  with np.errstate(over='ignore'):
    keys = np.arange(4000, dtype=np.int64) * np.int64(step - (step >> 63 << 64))
  keys = np.unique(keys)
  shards = index_lib.shard_of(tf.constant(keys), 4).numpy()
  counts = np.bincount(shards, minlength=4)
  assert counts.max() <= 1.5 * len(keys) / 4 + 1


def test_keys_count_once_replicas_have_them_too():
  table = key_tables.Table()
  table.insert([5])
  before = table.shard.counts.numpy()
  writes, replicas = replicated_writes.ReplicatedWrites(), {}
  for name, variable in table.variables.items():
    replicas[name] = replicated_writes.make(variable, '/CPU:0')
    replicas[name].assign(variable)
    writes.add(variable, replicas[name])
  replicas['keys'].assign([0])  # so that it cannot be written
  again = shard_lib.Shard(1, table.shard.values)
  with pytest.raises(tf.errors.InvalidArgumentError, match='indices'):
    again.locate(tf.constant([6, 7], tf.int64), inserts=True)
  for counts in (table.shard.counts, replicas['counts']):
    np.testing.assert_array_equal(counts.numpy(), before)
  replicas['keys'].assign(table.variables['keys'])
  assert again.locate(tf.constant([6], tf.int64), inserts=True) == _FIRST + 1
  np.testing.assert_array_equal(
    replicas['counts'].numpy(), table.shard.counts.numpy()
  )


def test_a_value_may_have_more_rows_than_its_handle():
  variable = growing.opened(tf.Variable(np.zeros([2, 3], 'f')))
  variable.assign(np.ones([5, 3], 'f'))

  @tf.function(autograph=False)
  def size():
    return open_shapes.num_rows(variable)

  assert size() == 5
  assert variable.shape.as_list() == [None, 3]
  assert open_shapes.of_handle(variable).as_list() == [2, 3]
