import numpy as np
import pytest
import tensorflow as tf

from tfps.updates import moving

_PS = '/job:ps/replica:0/task:0/device:CPU:0'


def _small() -> list[tf.Tensor]:
  return [
    tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    tf.constant(5.0),
    tf.constant([], tf.float32),
    tf.constant([6, 7], tf.int64),
    tf.constant(True),
  ]


def _rows() -> tf.IndexedSlices:
  return tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]))


@pytest.mark.parametrize('wrap', [lambda fn: fn, tf.function])
def test_values_and_structure_stay_as_they_are(wrap):
  move = wrap(lambda *inputs: moving.move(inputs, '/device:CPU:0'))
  small, large = _small(), tf.range(100_000, dtype=tf.float32)
  found, rows, found_large, number = move(small, _rows(), large, 2.5)
  for a, b in zip(found, small, strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  np.testing.assert_array_equal(rows.indices, [4, 1])
  np.testing.assert_array_equal(rows.values, np.ones([2, 3]))
  np.testing.assert_array_equal(found_large, large)
  assert number == 2.5


def _crossing(structure) -> list[tuple[int, ...]]:
  """The shapes of what comes to the ps."""
  with tf.Graph().as_default() as graph:
    moving.move(structure(), _PS)
  return [
    tuple(tensor.shape)
    for operation in graph.get_operations()
    if operation.device == _PS
    for tensor in operation.inputs
    if tensor.op.device != _PS
  ]


def test_small_tensors_of_a_type_are_sent_as_one():
  assert sorted(_crossing(_small)) == [(), (2,), (5,)]


def test_a_tensor_that_is_named_twice_is_sent_once():
  def twice():
    value = tf.zeros([3])
    return [value, value, tf.zeros([2])]

  assert _crossing(twice) == [(5,)]


def test_large_tensors_are_sent_by_themselves():
  assert sorted(
    _crossing(lambda: [tf.zeros([100_000]), tf.zeros([7]), tf.zeros([2])])
  ) == [(9,), (100_000,)]
