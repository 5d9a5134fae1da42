"""How a batch is divided among the replicas of a step."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps.input import batch_rows
from tfps.keras import batch_structures
from tfps.variables import step_replicas


def _strategy(number):
  devices = tuple(f'/device:CPU:{i}' for i in range(number))
  replicas = step_replicas.Replicas(devices, number)
  return types.SimpleNamespace(
    extended=types.SimpleNamespace(replicas=replicas)
  )


def _joined(pieces):
  join = {
    tf.SparseTensor: lambda *parts: tf.sparse.to_dense(
      tf.sparse.concat(0, list(parts))
    ),
    tf.RaggedTensor: lambda *parts: tf.concat(parts, axis=0).to_tensor(),
  }
  kind = type(pieces[0])
  return join.get(kind, lambda *parts: tf.concat(parts, axis=0))(*pieces)


@pytest.mark.parametrize(
  'leaf',
  [
    tf.reshape(tf.range(10), [5, 2]),
    tf.ragged.constant([[1], [], [2, 3], [4], [5, 6, 7]]),
    tf.sparse.from_dense(np.arange(10).reshape([5, 2])),
  ],
  ids=['dense', 'ragged', 'sparse'],
)
def test_pieces_are_all_rows_in_order(leaf):
  pieces = batch_structures.divide(({'x': leaf}, None), _strategy(2))
  rows = [piece[0]['x'] for piece in pieces]
  assert [int(batch_rows.count(each)) for each in rows] == [2, 3]
  assert [piece[1] for piece in pieces] == [None, None]
  whole = leaf
  if isinstance(leaf, tf.SparseTensor):
    whole = tf.sparse.to_dense(leaf)
  elif isinstance(leaf, tf.RaggedTensor):
    whole = leaf.to_tensor()
  np.testing.assert_array_equal(_joined(rows), whole)


def test_scalars_go_to_all_and_few_rows_to_few():
  batch = (tf.range(2), tf.constant(7))
  pieces = batch_structures.divide(batch, _strategy(3))
  found = keras.tree.map_structure(lambda leaf: leaf.numpy().tolist(), pieces)
  assert found == (([0], 7), ([1], 7))


def test_one_replica_has_the_batch_as_it_is():
  batch = (tf.range(2),)
  assert batch_structures.divide(batch, _strategy(1)) is batch


def test_parts_of_different_lengths_are_refused():
  with pytest.raises(ValueError, match=r'parts of \[2, 3\] examples'):
    batch_structures.divide((tf.range(2), tf.range(3)), _strategy(2))
