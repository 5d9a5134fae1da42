"""Slots have as many rows as the variables that they belong to."""

import gc

import numpy as np
import tensorflow as tf

from tfps.updates.tables import sharing
from tfps.updates.tables import slots as slots_lib
from tfps.variables import growing


def _grown(num_rows):
  return growing.opened(tf.Variable(tf.zeros([num_rows, 2])))


def _slot(first, num_rows=1):
  rows = np.broadcast_to(np.array(first, 'f'), [num_rows, 2])
  return growing.opened(tf.Variable(rows))


def _fitting(rows, slots):
  """Returns a function in which slots grow."""

  @tf.function(autograph=False)
  def fit():
    with tf.control_dependencies(slots_lib.fit(rows, slots)):
      return tf.constant(True)

  return fit


def test_they_grow_by_copies_of_their_first_row():
  rows, slots = _grown(7), [_slot([1, 2], 3), _slot([3, 4], 7)]
  fit = _fitting(rows, slots)
  fit()
  np.testing.assert_array_equal(slots[0], [[1, 2]] * 7)
  np.testing.assert_array_equal(slots[1], [[3, 4]] * 7)
  rows.assign(tf.zeros([9, 2]))
  fit()
  np.testing.assert_array_equal(slots[1], [[3, 4]] * 9)


def test_similar_ones_share_a_branch_that_goes_with_the_last(monkeypatch):
  traced, growth = [], growing.fit

  def noting(*args, **kwargs):
    traced.append(args)
    return growth(*args, **kwargs)

  monkeypatch.setattr(growing, 'fit', noting)
  gc.collect()
  before = len(sharing.in_use())
  all_rows = [_grown(5), _grown(6)]
  for rows in all_rows:
    slot = _slot([1, 2])
    _fitting(rows, [slot])()
    assert slot.shape[0] is None
    np.testing.assert_array_equal(slot, [[1, 2]] * len(rows.numpy()))
  assert len(traced) == 1
  assert len(sharing.in_use()) == before + 1
  traced.clear()
  del rows, all_rows
  gc.collect()
  assert len(sharing.in_use()) == before


def test_those_of_a_variable_that_does_not_grow_are_left():
  rows = tf.Variable(tf.zeros([5, 2]))
  assert slots_lib.fit(rows, [_slot([1, 2])]) == []
