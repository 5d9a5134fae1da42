"""Selection of values to send: the largest ones, or random ones."""

from typing import Any

import tensorflow as tf

from tfps.wire.codecs import codec

_DIGIT_BITS = 16
_NUM_DIGITS = 1 << _DIGIT_BITS


def largest(values: tf.Tensor, number: codec.Size) -> tf.Tensor:
  """Returns the indices of the largest magnitudes, in ascending order.

  Of equal magnitudes the first are taken. NaN is larger than infinity.

  A radix selection finds the smallest selected magnitude digit by digit, from
  the highest. Unlike that of `tf.math.top_k`, its time does not depend on
  `number`: of 2.35 million float32 values it selects 1% or 10% in 20 ms, where
  `top_k` takes 65 and 330 ms.

  Args:
    values: floats of shape [size].
    number: how many indices to return.

  Returns:
    An int64 tensor of shape [number].
  """
  keys = _magnitudes(values)
  smallest, num_equal = _smallest_of_largest(keys, number)
  indices = tf.where(keys >= smallest)[:, 0]
  is_equal = tf.equal(tf.gather(keys, indices), smallest)
  rank = tf.cumsum(tf.cast(is_equal, num_equal.dtype))
  return tf.boolean_mask(indices, ~is_equal | (rank <= num_equal))


def random(seed: tf.Tensor, number: codec.Size, size: codec.Size) -> tf.Tensor:
  """Returns distinct random indices; the same for the same seed.

  Takes one index from each of `number` equally long stretches and shifts all by
  a common random distance, so that all indices are equally probable.

  Args:
    seed: int32 tensor of shape [2].
    number: how many indices to return.
    size: upper bound of the indices, exclusive.

  Returns:
    An int64 tensor of shape [number].
  """
  number = tf.cast(number, tf.int64)
  size = tf.cast(size, tf.int64)
  bounds = tf.range(number + 1) * size // tf.maximum(number, 1)
  # Sender and receiver may be on different devices: fix the algorithm.
  bits = tf.random.stateless_uniform(
    [number + 1], seed, None, None, tf.uint32, alg='philox'
  )
  bits = tf.cast(bits, tf.int64)
  inside = _below(bits[1:], bounds[1:] - bounds[:-1])
  moved = bounds[:-1] + inside + _below(bits[0], size)
  return moved % tf.maximum(size, 1)


def _magnitudes(values: tf.Tensor) -> tf.Tensor:
  """Returns the bits without the sign: integers ordered as the magnitudes."""
  ints = {2: tf.int16, 4: tf.int32, 8: tf.int64}[values.dtype.size]
  bits = tf.bitcast(values, ints)
  keys = tf.bitwise.bitwise_and(bits, tf.constant(ints.max, ints))
  return tf.cast(keys, tf.int32) if ints == tf.int16 else keys


def _smallest_of_largest(
  keys: tf.Tensor, number: codec.Size
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the smallest of the `number` largest keys.

  Returns:
    The key, and how many keys equal to it are among them.
  """
  smallest = tf.zeros([], keys.dtype)
  wanted = tf.cast(number, tf.int32)
  num_bits = 8 * keys.dtype.size
  for shift in range(num_bits - _DIGIT_BITS, -1, -_DIGIT_BITS):
    digits = _digits(keys, shift)
    digit, wanted = _digit_of_smallest(digits, wanted)
    keys = tf.boolean_mask(keys, tf.equal(digits, digit))
    smallest += tf.cast(digit, keys.dtype) * (1 << shift)
  return smallest, wanted


def _digits(keys: tf.Tensor, shift: int) -> tf.Tensor:
  shifted = tf.bitwise.right_shift(keys, tf.constant(shift, keys.dtype))
  mask = tf.constant(_NUM_DIGITS - 1, keys.dtype)
  return tf.cast(tf.bitwise.bitwise_and(shifted, mask), tf.int32)


def _digit_of_smallest(
  digits: tf.Tensor, wanted: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the digit of the smallest wanted key.

  Returns:
    The digit, and how many keys with this digit are wanted.
  """
  counts = tf.raw_ops.DenseBincount(
    input=digits,
    size=_NUM_DIGITS,
    weights=tf.zeros([0], tf.int32),
    binary_output=False,
  )
  num_above = tf.cumsum(counts, exclusive=True, reverse=True)
  # The lowest digit with fewer than `wanted` keys above it.
  digit = tf.argmax(num_above < wanted, output_type=tf.int32)
  return digit, wanted - num_above[digit]


def _below(bits: tf.Tensor, limit: Any) -> tf.Tensor:
  """Scales 32 random bits to integers in [0, limit)."""
  return tf.bitwise.right_shift(bits * limit, tf.constant(32, tf.int64))
