"""Shares of workers in batches that are for all of them."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf

from tfps.strategies import all_reduce_setup

_IDS = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]])
_NUMBERS = tf.range(5)
_Named = collections.namedtuple('_Named', ['x', 'y'])


def _shares(rank, size, num_workers=3):
  reduction = types.SimpleNamespace(
    rank=tf.Variable(rank), size=tf.Variable(size)
  )
  return all_reduce_setup.Shares(reduction, num_workers)


def _parts(element, size=2):
  """The part of each worker, of a dataset of one batch."""
  dataset = tf.data.Dataset.from_tensors(element)
  return [next(iter(_shares(r, size).of(dataset))) for r in range(size)]


@pytest.mark.parametrize(
  ('leaf', 'dense'),
  [
    (_NUMBERS, lambda part: part),
    (_IDS, lambda part: part.to_tensor(shape=[None, 3])),
    (_IDS.to_sparse(), tf.sparse.to_dense),
  ],
  ids=['dense', 'ragged', 'sparse'],
)
@pytest.mark.parametrize('size', [1, 2, 3, 7])
def test_parts_are_all_rows_once(leaf, dense, size):
  parts = _parts(leaf, size)
  actual = np.concatenate([dense(part) for part in parts])
  np.testing.assert_array_equal(actual, dense(leaf))


@pytest.mark.parametrize(
  'element',
  [
    (_NUMBERS,),
    (_NUMBERS, _NUMBERS),
    ((_NUMBERS,), _NUMBERS),
    {'x': _NUMBERS, 'y': (_NUMBERS,)},
    _Named(_NUMBERS, _NUMBERS),
    _NUMBERS,
  ],
)
def test_parts_have_the_structure_of_the_batch(element):
  for part in _parts(element):
    tf.nest.assert_same_structure(part, element)
    assert type(part) is type(element) or tf.is_tensor(element)


def test_scalars_are_for_all():
  for part in _parts({'x': _NUMBERS, 'scale': 2.0}):
    assert part['scale'] == 2.0
