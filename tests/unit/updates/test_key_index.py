"""Rows of a table by key, without any server."""

import gc
import uuid
import weakref

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import open_shapes
from tfps.updates import key_index
from tfps.variables import growing

_FIRST = key_index.NUM_INITIAL
_KEYS = st.lists(
  st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20, unique=True
)


class _Table:
  """A shard of rows of two, and functions that look keys up in it."""

  def __init__(self, num_shards=1):
    first = np.arange(2 * _FIRST, dtype='f').reshape(-1, 2)
    rows, keys = (
      growing.opened(tf.Variable(value))
      for value in (first, np.zeros(_FIRST, np.int64))
    )
    counts = tf.Variable(key_index.initial_counts(1), dtype=tf.int64)
    self.variables = rows, keys, counts
    self.shard = key_index.Shard(
      f'test/{uuid.uuid4().hex}', rows, keys, counts, num_shards
    )

  def insert(self, keys):
    return self.shard.locate(tf.constant(keys, tf.int64), inserts=True).numpy()

  def find(self, keys):
    return self.shard.locate(tf.constant(keys, tf.int64), inserts=False).numpy()

  def values(self):
    return [variable.numpy() for variable in self.variables]

  def restore(self, values):
    for variable, value in zip(self.variables, values, strict=True):
      variable.assign(value)


@pytest.fixture(scope='module')
def emptied():
  table = _Table()
  empty = table.values()

  def empty_again():
    table.restore(empty)
    return table

  return empty_again


@settings(deadline=None)
@given(batches=st.lists(_KEYS, min_size=1, max_size=5))
def test_each_key_keeps_its_row(emptied, batches):
  table, rows = emptied(), {}
  for batch in batches:
    before = table.find(batch)
    for key, row, initial in zip(
      batch, table.insert(batch), before, strict=True
    ):
      assert rows.setdefault(key, row) == row >= _FIRST
      values = table.shard.rows.numpy()
      if initial < _FIRST:  # it was new, and began with this
        np.testing.assert_array_equal(values[row], values[initial])
  assert sorted(rows.values()) == list(range(_FIRST, _FIRST + len(rows)))
  assert table.find(list(rows)).tolist() == list(rows.values())
  keys = table.shard.keys.numpy()
  assert {key: keys[row] for key, row in rows.items()} == {k: k for k in rows}


def test_rows_are_found_after_any_values_were_restored():
  table = _Table()
  table.insert([5, 6])
  earlier = table.values()
  table.insert([7, 8])
  other = _Table()
  other.insert([8, 7])
  other.insert([6, 5])  # as often, so that only the keys tell them apart
  later = other.values()

  table.restore(earlier)
  assert table.find([5, 6]).tolist() == [_FIRST, _FIRST + 1]
  assert (table.find([7, 8]) < _FIRST).all()
  table.restore(later)
  found = table.find([5, 6, 7, 8]).tolist()
  assert found == [_FIRST + 3, _FIRST + 2, _FIRST + 1, _FIRST]
  table.insert([9])
  table.restore(earlier)
  assert table.insert([9]).tolist() == [_FIRST + 2]


def test_a_table_grows_by_as_much_while_it_is_small_and_then_by_less():
  table = _Table()
  table.insert(np.arange(1000))
  assert len(table.shard.rows.numpy()) == 2 * (_FIRST + 1000)
  table.insert(np.arange(3000))
  assert len(table.shard.rows.numpy()) == 2 * (_FIRST + 1000)
  assert len(table.shard.keys.numpy()) == 2 * (_FIRST + 1000)
  table.insert(np.arange(3025))
  assert len(table.shard.rows.numpy()) == 2 * (_FIRST + 3025)
  many = 20 << 20  # of 8 bytes each
  table.insert(np.arange(many))
  needed = _FIRST + many
  assert len(table.shard.rows.numpy()) == needed + needed // 8
  assert table.find([many - 1]).tolist() == [needed - 1]


def test_nothing_keeps_a_table_that_is_not_used_any_more():
  table = _Table()
  table.insert([1, 2])
  rows = weakref.ref(table.shard.rows)
  del table
  gc.collect()
  assert rows() is None


def test_values_of_another_number_of_shards_are_refused():
  table = _Table(num_shards=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match='has 2 shards'):
    table.find([1])


@pytest.mark.parametrize('step', [1, 2, 1 << 32, 3 << 61])
def test_keys_of_any_pattern_are_shared_out(step):
  with np.errstate(over='ignore'):
    keys = np.arange(4000, dtype=np.int64) * np.int64(step - (step >> 63 << 64))
  keys = np.unique(keys)
  shards = key_index.shard_of(tf.constant(keys), 4).numpy()
  counts = np.bincount(shards, minlength=4)
  assert counts.max() <= 1.5 * len(keys) / 4 + 1


def test_a_value_may_have_more_rows_than_its_handle():
  variable = growing.opened(tf.Variable(np.zeros([2, 3], 'f')))
  variable.assign(np.ones([5, 3], 'f'))

  @tf.function(autograph=False)
  def size():
    return open_shapes.num_rows(variable)

  assert size() == 5
  assert variable.shape.as_list() == [None, 3]
  assert open_shapes.of_handle(variable).as_list() == [2, 3]
