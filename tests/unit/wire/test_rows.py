"""Rows are known to be distinct where they are."""

import pytest
import tensorflow as tf

from tfps.wire import sparse_rows

INDICES = {
  'unique': (lambda x: tf.unique(x)[0], True),
  'unique with counts': (lambda x: tf.unique_with_counts(x)[0], False),
  'where they were': (lambda x: tf.unique(x)[1], False),
  'any': (lambda x: x, False),
}


@pytest.mark.parametrize('kind', INDICES)
def test_only_what_is_known_to_be_distinct_is(kind):
  make, expected = INDICES[kind]

  @tf.function
  def function(x):
    indices = make(x)
    assert sparse_rows.are_distinct(indices) is expected
    return indices

  function(tf.constant([7, 3, 7, 7]))


def test_outside_of_functions_nothing_is_known():
  assert not sparse_rows.are_distinct(tf.unique([1, 2])[0])
