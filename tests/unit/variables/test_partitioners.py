import hypothesis
from hypothesis import strategies as st
import pytest
import tensorflow as tf

from tfps.variables import partitioners

STOCK = tf.distribute.experimental.partitioners

_few = hypothesis.settings(max_examples=30, deadline=None)
shapes = st.lists(st.integers(1, 50), min_size=1, max_size=4)
dtypes = st.sampled_from([tf.float32, tf.float16, tf.int64, tf.bool, tf.string])
num_bytes = st.integers(1, 100_000)
num_shards = st.integers(1, 60)
string_bytes = st.integers(1, 40)


def assert_equal(ours, stock, shape, dtype):
  shape = tf.TensorShape(shape)
  for axis in range(shape.rank):
    assert ours(shape, dtype, axis) == stock(shape, dtype, axis)
  assert ours(shape=shape, dtype=dtype) == stock(shape=shape, dtype=dtype)


@_few
@hypothesis.given(shapes, dtypes, num_shards)
def test_fixed_shards_are_tensorflows(shape, dtype, num_shards):
  ours = partitioners.FixedShards(num_shards)
  stock = STOCK.FixedShardsPartitioner(num_shards)
  assert_equal(ours, stock, shape, dtype)


@_few
@hypothesis.given(
  shapes, dtypes, st.tuples(num_bytes, num_shards, string_bytes)
)
def test_min_size_is_tensorflows(shape, dtype, arguments):
  ours = partitioners.MinSize(*arguments)
  stock = STOCK.MinSizePartitioner(*arguments)
  assert_equal(ours, stock, shape, dtype)


@_few
@hypothesis.given(
  shapes, dtypes, st.tuples(num_bytes, st.none() | num_shards, string_bytes)
)
def test_max_size_is_tensorflows(shape, dtype, arguments):
  ours = partitioners.MaxSize(*arguments)
  stock = STOCK.MaxSizePartitioner(*arguments)
  assert_equal(ours, stock, shape, dtype)


def test_defaults_are_tensorflows():
  assert_equal(
    partitioners.MinSize(), STOCK.MinSizePartitioner(), [9**6], tf.int64
  )
  assert_equal(
    partitioners.MaxSize(99), STOCK.MaxSizePartitioner(99), [999], tf.string
  )


@pytest.mark.parametrize(
  'partitioner',
  [
    partitioners.FixedShards(3),
    partitioners.MinSize(1, 3),
    partitioners.MaxSize(1),
  ],
  ids=str,
)
class TestAnyPartitioner:
  def test_takes_what_tensorflow_takes(self, partitioner):
    assert partitioner((6, 2), 'float32') == partitioner(
      tf.TensorShape([6, 2]), tf.float32, axis=0
    )

  def test_leaves_what_is_empty_in_one_piece(self, partitioner):
    assert partitioner([0, 4], tf.float32) == [1, 1]
    assert partitioner([1, 0], tf.float32) == [1, 1]

  @pytest.mark.parametrize('shape', [[], [4], [4, 5]], ids=str)
  def test_refuses_an_axis_that_is_not_there(self, partitioner, shape):
    with pytest.raises(ValueError, match=r'has no axis 2\. Give an axis below'):
      partitioner(shape, tf.float32, axis=2)

  def test_refuses_unknown_dimensions(self, partitioner):
    with pytest.raises(ValueError, match='unknown dimensions'):
      partitioner(tf.TensorShape([None, 4]), tf.float32)


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: partitioners.FixedShards(0), 'FixedShards: num_shards is 0'),
    (lambda: partitioners.MinSize(0), 'MinSize: min_shard_bytes is 0'),
    (lambda: partitioners.MinSize(1, 0), 'MinSize: max_shards is 0'),
    (lambda: partitioners.MinSize(1, 1, -1), 'bytes_per_string is -1'),
    (lambda: partitioners.MaxSize(-5), 'MaxSize: max_shard_bytes is -5'),
    (lambda: partitioners.MaxSize(1, -1), 'MaxSize: max_shards is -1'),
    (lambda: partitioners.MaxSize(1, None, 0), 'bytes_per_string is 0'),
  ],
)
def test_refuses_what_is_not_positive(make, message):
  with pytest.raises(ValueError, match=rf'{message}\. Give at least 1'):
    make()
