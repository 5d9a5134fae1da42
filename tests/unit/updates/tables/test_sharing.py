"""Branches whose graph all similar tables share."""

import dataclasses
import gc
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf

from tests.support import key_tables
from tfps.updates.tables import admission
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import sharing

pytestmark = pytest.mark.slow

_FIRST = counts_lib.NUM_INITIAL


@dataclasses.dataclass(frozen=True)
class _Even(admission.Admission):
  """Admission of even keys, which notes that it was traced."""

  name: str
  traced: ClassVar = []

  def admits(self, shard, keys):
    del shard
    self.traced.append(self.name)
    return keys % 2 == 0


def _inserting(table):
  """Returns a function that is traced with a look-up in training."""

  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)]
  )
  def insert(keys):
    return table.shard.locate(keys, inserts=True)

  return insert


def test_similar_tables_share_the_branch_and_nothing_else():
  _Even.traced.clear()
  tables = [key_tables.Table(admission=_Even('similar')) for _ in range(3)]
  for number, table in enumerate(tables):
    found = _inserting(table)(np.arange(2 * number + 2)).numpy()
    expected = [_FIRST + key // 2 if key % 2 == 0 else -1 for key in range(6)]
    assert found.tolist() == expected[: 2 * number + 2]
  assert _Even.traced == ['similar']
  for number, table in enumerate(tables):
    assert table.present(range(10)) == set(range(0, 2 * number + 2, 2))
    rows = _FIRST + np.arange(number + 1)
    keys = table.values()['keys'][rows]
    np.testing.assert_array_equal(keys, np.arange(0, 2 * number + 2, 2))


@pytest.mark.parametrize(
  'other',
  [{'admission': _Even('other')}, {'admission': _Even('one'), 'width': 3}],
  ids=['policy', 'width'],
)
def test_other_tables_have_a_branch_of_their_own(other):
  _Even.traced.clear()
  for given in ({'admission': _Even('one')}, other):
    table = key_tables.Table(**given)
    assert _inserting(table)([4]).numpy() == [_FIRST]
  assert _Even.traced == ['one', other['admission'].name]


@pytest.mark.exhaustive
def test_the_branch_goes_with_the_last_table_that_uses_it():
  gc.collect()
  before = len(sharing.in_use())
  table = key_tables.Table(admission=_Even('last'))
  table.insert([4])
  assert len(sharing.in_use()) == before + 1
  del table
  gc.collect()
  assert len(sharing.in_use()) == before
