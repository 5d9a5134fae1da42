import tensorflow as tf

from tfps.wire import chunking


def _divided(*sizes, max_bytes=100):
  tensors = [tf.zeros([size], tf.uint8) for size in sizes]
  chunks = chunking.divide(tensors, lambda tensor: tensor, max_bytes)
  return [[int(tensor.shape[0]) for tensor in chunk] for chunk in chunks]


def test_chunks_keep_the_order_and_stay_below_the_bound():
  assert _divided(40, 60, 1, 99, 1) == [[40, 60], [1, 99], [1]]


def test_what_is_larger_goes_alone():
  assert _divided(10, 500, 10) == [[10], [500], [10]]


def test_what_is_small_goes_as_one():
  assert _divided(*[1] * 100) == [[1] * 100]
  assert _divided() == []


def test_rows_count_as_nothing():
  rows = tf.IndexedSlices(tf.zeros([1000, 10]), tf.range(1000))
  assert list(chunking.divide([rows, rows], lambda r: r, 10)) == [[rows, rows]]
