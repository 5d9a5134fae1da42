"""What codecs send and what comes out, in this process."""

from collections.abc import Sequence
import dataclasses
import functools
import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import codecs
from tfps.wire.codecs import int8
from tfps.wire.codecs import selection


def _name(value):
  return getattr(value, 'name', str(value))


_FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
_CODECS = (
  codecs.Float16(),
  codecs.BFloat16(),
  codecs.Int8(),
  codecs.Int8(block=16, stochastic=True),
  codecs.TopK(0.1),
  codecs.RandomK(0.1),
  codecs.RandomK(0.3, unbiased=True),
  codecs.OneBit(),
  codecs.OneBit(block=8),
)
_TINY = 1.5e-36  # what Int8 may take for zero

_few = hypothesis.settings(max_examples=25, deadline=None)
_by_codec = pytest.mark.parametrize('codec', _CODECS, ids=str)
_by_dtype = pytest.mark.parametrize('dtype', _FLOATS, ids=_name)

sizes = st.integers(0, 5000)
seeds = st.integers(0, 2**31)
exponents = st.integers(-30, 30)
# Of any magnitude, the greatest and the least among them.
odd_values = st.lists(
  st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40
)


@functools.cache
def _through(codec: codecs.Codec, dtype: tf.DType):
  """Values and parts, of a length that is known only when it runs."""

  @tf.function(input_signature=[tf.TensorSpec([None], dtype)], autograph=False)
  def through(values):
    parts = codec.encode(values)
    size = tf.size(values, out_type=tf.int64)
    return codec.decode(parts, size, values.dtype), parts

  return through


def _decoded(codec, values, dtype=tf.float32):
  values, _ = _through(codec, dtype)(tf.cast(values, dtype))
  return values.numpy()


def _normal(size, seed, exponent=0):
  values = np.random.default_rng(seed).normal(size=size)
  return np.ldexp(values, exponent).astype('f')


def _num_bytes(parts):
  return sum(int(tf.size(part)) * part.dtype.size for part in parts)


def _blocks(values, size):
  return [values[i : i + size] for i in range(0, len(values), size)]


_BUFFERS = {
  '2500-float32': (2500, tf.float32),
  '0-float32': (0, tf.float32),
  '2500-float64': (2500, tf.float64),
  '1-float32': (1, tf.float32),
  '2500-float16': (2500, tf.float16),
  '2500-bfloat16': (2500, tf.bfloat16),
}


@pytest.mark.parametrize(
  ('size', 'dtype', 'codec'),
  turns.by_turns({str(codec): codec for codec in _CODECS}, _BUFFERS),
)
def test_parts_have_the_bytes_and_static_shapes_that_were_announced(
  codec, size, dtype
):
  @tf.function(input_signature=[tf.TensorSpec([size], dtype)], autograph=False)
  def through(values):
    parts = codec.encode(values)
    decoded = codec.decode(parts, size, dtype)
    assert all(part.shape.is_fully_defined() for part in parts)
    assert decoded.shape == [size]
    return parts, decoded

  values = tf.cast(_normal(size, seed=1), dtype)
  parts, decoded = through(values)
  assert _num_bytes(parts) == codec.wire_bytes(size, dtype)
  assert decoded.dtype == dtype
  parts = _through(codec, dtype)(values)[1]
  assert _num_bytes(parts) == codec.wire_bytes(size, dtype)


@hypothesis.given(sizes, seeds, exponents)
@_few
def test_casts_round_to_the_nearest(size, seed, exponent):
  values = _normal(size, seed, exponent)
  for codec, numpy_type in (
    (codecs.Float16(), np.float16),
    (codecs.BFloat16(), tf.bfloat16.as_numpy_dtype),
  ):
    with np.errstate(over='ignore'):
      expected = values.astype(numpy_type).astype('f')
    np.testing.assert_array_equal(_decoded(codec, values), expected)


@pytest.mark.parametrize(
  ('codec', 'dtype'),
  [
    (codecs.Float16(), tf.float16),
    (codecs.BFloat16(), tf.bfloat16),
    *((codecs.TopK(1.0), dtype) for dtype in _FLOATS),
    *((codecs.RandomK(1), dtype) for dtype in _FLOATS),
  ],
  ids=_name,
)
def test_what_has_room_for_everything_loses_nothing(codec, dtype):
  values = tf.cast(_normal(3000, seed=2), dtype)
  np.testing.assert_array_equal(_decoded(codec, values, dtype), values)


def test_codecs_that_lose_nothing_say_so():
  assert not any(codec.is_lossless for codec in _CODECS)
  assert codecs.TopK(1.0).is_lossless
  assert codecs.RandomK(1).is_lossless


@hypothesis.given(sizes, seeds, exponents, st.sampled_from([1, 7, 1024]))
@_few
def test_int8_is_off_by_half_a_scale_at_most(size, seed, exponent, block):
  values = _normal(size, seed, exponent)
  _check_int8(codecs.Int8(block), values, tf.float32, 0.5 * (1 + 1e-4))


@hypothesis.given(odd_values)
@hypothesis.example([3.4028234663852886e38, -1.0])
@hypothesis.example([-3.4028234663852886e38] * 9)
@hypothesis.example([1.4e-45, 1.2e-38, 1e-37])
@_few
def test_int8_stands_any_finite_value(values):
  values = np.array(values, 'f')
  _check_int8(codecs.Int8(4), values, tf.float32, 0.5 * (1 + 1e-4))


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64], ids=_name)
def test_int8_keeps_the_greatest_value_finite(dtype):
  values = tf.constant([dtype.max, -dtype.max], dtype)
  codec = codecs.Int8(4)
  # As it is, since the optimizer of graphs has its own way to divide by 127.
  decoded = codec.decode(codec.encode(values), 2, dtype)
  np.testing.assert_allclose(decoded, values, rtol=1e-6)


@hypothesis.given(sizes, seeds, exponents)
@_few
def test_stochastic_int8_is_off_by_a_scale_at_most(size, seed, exponent):
  values = _normal(size, seed, exponent)
  codec = codecs.Int8(16, stochastic=True)
  _check_int8(codec, values, tf.float32, 1 + 1e-4)


@pytest.mark.parametrize('exponent', [-900, 0, 900])
def test_int8_keeps_the_range_of_float64(exponent):
  values = np.ldexp(_normal(3000, seed=3).astype('d'), exponent)
  _check_int8(codecs.Int8(), values, tf.float64, 0.5 * (1 + 1e-12))


def _check_int8(codec, values, dtype, most_scales):
  decoded = _decoded(codec, values, dtype)
  for before, after in zip(
    _blocks(values, codec.block), _blocks(decoded, codec.block), strict=True
  ):
    scale = np.abs(before).max() / 127
    wrong = np.abs(after.astype('d') - before.astype('d')).max()
    assert wrong <= most_scales * scale + _TINY


def test_int8_gives_each_block_its_own_scale():
  values = np.concatenate([np.full(8, 1e-3), np.full(8, 1e3), np.zeros(8)])
  decoded = _decoded(codecs.Int8(8), values)
  np.testing.assert_allclose(decoded, values, rtol=1e-6)


def test_stochastic_rounding_is_right_in_the_mean():
  tf.random.set_seed(4)
  values = np.linspace(-1, 1, 64, dtype='f')
  copies = tf.tile(tf.constant(values), [4000])
  decoded = _decoded(codecs.Int8(64, stochastic=True), copies)
  scale = 1 / 127
  # A coin's standard deviation is half a scale at most.
  error = decoded.reshape(4000, 64).mean(axis=0) - values
  assert np.abs(error).max() < 5 * 0.5 * scale / math.sqrt(4000)
  rounded = _decoded(codecs.Int8(64), values) - values
  assert np.abs(rounded).max() > 0.4 * scale  # which rounding to nearest is not


def test_stochastic_rounding_does_not_go_beyond_a_byte():
  tf.random.set_seed(5)
  # So many that for some the sum with the random part is 128.
  rounded = int8.round_at_random(tf.fill([4_000_000], 127.0))
  assert rounded.numpy().min() == rounded.numpy().max() == 127


def test_stochastic_rounding_differs_from_step_to_step():
  codec = codecs.Int8(stochastic=True)
  values = _normal(100, seed=5)
  assert (_decoded(codec, values) != _decoded(codec, values)).any()


@hypothesis.given(sizes, seeds, st.sampled_from([0.001, 0.1, 0.7]))
@_few
def test_top_k_sends_the_largest_and_of_equals_the_first(size, seed, ratio):
  # Rounded, so that many are equal.
  values = np.round(_normal(size, seed) * 4)
  decoded = _decoded(codecs.TopK(ratio), values)
  _check_top_k(values, decoded, ratio)


@hypothesis.given(odd_values)
@_few
def test_top_k_stands_any_finite_value(values):
  # Without the numbers that many devices take for zeros.
  values = np.array([v if abs(v) > 1.2e-38 else 0.0 for v in values], 'f')
  _check_top_k(values, _decoded(codecs.TopK(0.3), values), 0.3)


@_by_dtype
def test_top_k_orders_the_magnitudes_of_each_type(dtype):
  values = tf.cast(_normal(3000, seed=6, exponent=3), dtype)
  decoded = _decoded(codecs.TopK(0.1), values, dtype)
  _check_top_k(values.numpy(), decoded, 0.1)


def _check_top_k(values, decoded, ratio):
  number = min(len(values), max(1, math.ceil(ratio * len(values))))
  chosen = np.argsort(-np.abs(values), kind='stable')[:number]
  expected = np.zeros_like(values)
  expected[chosen] = values[chosen]
  np.testing.assert_array_equal(decoded, expected)


def test_top_k_rounds_up_but_for_what_floats_make_of_a_product():
  assert 0.07 * 100 > 7
  assert codecs.TopK(0.07).wire_bytes(100, tf.float32) == 7 * 8
  assert codecs.TopK(0.07).wire_bytes(101, tf.float32) == 8 * 8


@pytest.mark.parametrize(
  ('size', 'dtype'), [(2**31 - 1, tf.int32), (2**31, tf.int64)]
)
def test_indices_are_as_long_as_the_buffer_demands(size, dtype):
  codec = codecs.TopK(0.01)
  # Traced only; nobody has the memory.
  encode = tf.function(codec.encode).get_concrete_function(
    tf.TensorSpec([size], tf.float16)
  )
  values, indices = encode.structured_outputs
  assert indices.dtype == dtype
  num_bytes = values.shape[0] * (2 + dtype.size)
  assert codec.wire_bytes(size, tf.float16) == num_bytes


@hypothesis.given(sizes, st.sampled_from([0.001, 0.1, 0.7]))
@_few
def test_random_k_sends_different_places_as_they_are(size, ratio):
  values = np.arange(1, size + 1, dtype='f')
  decoded = _decoded(codecs.RandomK(ratio), values)
  sent = decoded != 0
  assert sent.sum() == min(size, max(1, math.ceil(ratio * size)))
  np.testing.assert_array_equal(decoded[sent], values[sent])


@pytest.mark.parametrize(('number', 'size'), [(3, 10), (1, 7), (5, 6)])
def test_random_places_are_all_as_likely(number, size):
  num_draws = 4000
  seeds = tf.range(2 * num_draws)
  draw = tf.function(
    lambda pairs: tf.map_fn(
      lambda seed: selection.random(seed, number, size),
      pairs,
      fn_output_signature=tf.int64,
    )
  )
  drawn = draw(tf.reshape(seeds, [-1, 2])).numpy()
  frequency = np.bincount(drawn.ravel(), minlength=size) / num_draws
  part = number / size
  deviation = math.sqrt(part * (1 - part) / num_draws)
  assert len(frequency) == size
  assert np.abs(frequency - part).max() < 5 * deviation


def test_unbiased_random_k_is_right_in_the_mean():
  tf.random.set_seed(7)
  codec, values = codecs.RandomK(0.25, unbiased=True), np.arange(8, dtype='f')

  @tf.function
  def mean(times):
    total = tf.zeros([8])
    for _ in tf.range(times):
      total += codec.decode(codec.encode(tf.constant(values)), 8, tf.float32)
    return total / tf.cast(times, tf.float32)

  # What is sent counts four times, so that the deviation is 1.7 times a value.
  error = np.abs(mean(4000).numpy() - values)
  assert (error <= 5 * math.sqrt(3) * values / math.sqrt(4000)).all()


@hypothesis.given(sizes, seeds, st.sampled_from([8, 256]))
@_few
def test_one_bit_gives_each_sign_the_mean_of_its_block(size, seed, block):
  values = np.round(_normal(size, seed) * 2)  # some zeros
  decoded = _decoded(codecs.OneBit(block), values)
  for before, after in zip(
    _blocks(values, block), _blocks(decoded, block), strict=True
  ):
    for sign in (before > 0, before <= 0):
      if sign.any():
        np.testing.assert_allclose(after[sign], before[sign].mean(), rtol=1e-5)


@pytest.mark.parametrize(
  ('dtype', 'codec'),
  turns.by_turns(
    {str(codec): codec for codec in _CODECS},
    {dtype.name: (dtype,) for dtype in _FLOATS},
  ),
)
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_not_finite_never_comes_out_finite(codec, dtype, bad):
  for size, position in ((1, 0), (40, 0), (40, 39), (3000, 2047)):
    values = _normal(size, seed=8)
    values[position] = bad
    decoded = _decoded(codec, values, dtype).astype('f')
    assert not np.isfinite(decoded).all(), (size, position)


@pytest.mark.parametrize(
  ('codec', 'rest'),
  [
    (codecs.Float16(), 'finite'),
    (codecs.BFloat16(), 'finite'),
    (codecs.Int8(8), 'nan'),
    (codecs.TopK(0.5), 'finite'),
    (codecs.RandomK(1.0), 'nan'),
    (codecs.OneBit(8), 'nan'),
  ],
  ids=str,
)
def test_what_a_nan_does_to_its_neighbours(codec, rest):
  values = np.array([-1, -2, np.nan, -4, -5, -6, -7, -8], 'f')
  decoded = _decoded(codec, values)
  assert np.isnan(decoded[2])
  others = np.delete(decoded, 2)
  assert {'finite': np.isfinite, 'nan': np.isnan}[rest](others).all()


def test_a_nan_stays_within_its_block():
  values = np.ones(24, 'f')
  values[9] = np.nan
  for codec in (codecs.Int8(8), codecs.OneBit(8)):
    decoded = _decoded(codec, values)
    np.testing.assert_allclose(np.delete(decoded, range(8, 16)), 1, rtol=1e-6)


@_by_dtype
@pytest.mark.parametrize('rest', [1.0, -1.0, np.inf, -np.inf], ids=str)
def test_int8_finds_a_nan_wherever_it_is(dtype, rest):
  values = np.full([40, 40], rest, 'f')
  np.fill_diagonal(values, np.nan)
  decoded = _decoded(codecs.Int8(40), values.ravel(), dtype)
  assert np.isnan(decoded.astype('f')).all()


def test_top_k_sends_nan_before_infinity_and_that_before_the_rest():
  values = np.array([1, 3e38, -np.inf, 2, np.nan], 'f')
  for ratio, expected in ((0.2, [np.nan]), (0.4, [-np.inf, np.nan])):
    parts = codecs.TopK(ratio).encode(tf.constant(values))
    np.testing.assert_array_equal(parts[0], expected)


def test_too_much_for_half_precision_comes_out_infinite():
  values = [65519.0, 65520.0, -1e9]
  decoded = _decoded(codecs.Float16(), values)
  np.testing.assert_array_equal(decoded, [65504.0, np.inf, -np.inf])


@pytest.mark.parametrize(
  ('codec', 'for_pulls_and_rows'),
  [
    *((codec, True) for codec in _CODECS[:4]),
    *((codec, False) for codec in _CODECS[4:]),
  ],
  ids=str,
)
def test_codecs_say_what_they_are_for_and_why_not(codec, for_pulls_and_rows):
  assert codec.for_pulls == codec.for_rows == for_pulls_and_rows
  assert bool(codec.why_not) != for_pulls_and_rows


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: codecs.Int8(0), 'Int8: block is 0. Give at least 1'),
    (lambda: codecs.Int8(1.5), 'Int8: block is 1.5'),
    (lambda: codecs.Int8(block=True), 'Int8: block is True'),
    (lambda: codecs.OneBit(-8), 'OneBit: block is -8. Give at least 1'),
    (lambda: codecs.OneBit(12), 'OneBit: block is 12. Give a multiple of 8'),
    (lambda: codecs.TopK(0), 'TopK: ratio is 0. Give .* more than 0'),
    (lambda: codecs.TopK(1.01), 'TopK: ratio is 1.01. Give .* at most 1'),
    (lambda: codecs.TopK(math.nan), 'TopK: ratio is nan'),
    (lambda: codecs.TopK('0.1'), "TopK: ratio is '0.1'"),
    (lambda: codecs.RandomK(-0.1), 'RandomK: ratio is -0.1'),
  ],
)
def test_bad_settings_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@_by_codec
@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (tf.zeros([2, 3]), r'shape \(2, 3\) and type float32 cannot be encoded'),
    (tf.zeros([]), r'shape \(\) and type float32 cannot'),
    (tf.zeros([3], tf.int32), r'shape \(3,\) and type int32 cannot'),
  ],
)
def test_values_that_are_no_flat_floats_are_refused(codec, values, message):
  with pytest.raises(ValueError, match=f'{type(codec).__name__}.*{message}'):
    codec.encode(values)


@dataclasses.dataclass(frozen=True)
class _Thirds(codecs.Codec):
  """A codec of a user's own: every third value, for all three."""

  for_pulls = True

  def encode(self, values: tf.Tensor) -> list[tf.Tensor]:
    return [values[::3]]

  def decode(
    self, parts: Sequence[tf.Tensor], size: int | tf.Tensor, dtype: tf.DType
  ) -> tf.Tensor:
    return tf.repeat(parts[0], 3)[:size]

  def wire_bytes(self, size: int, dtype: tf.DType) -> int:
    return -(-size // 3) * dtype.size


def test_users_write_codecs_of_their_own():
  codec = _Thirds()
  values = np.array([1, 2, 3, 4, 5], 'f')
  decoded, parts = _through(codec, tf.float32)(values)
  np.testing.assert_array_equal(decoded, [1, 1, 1, 4, 4])
  assert _num_bytes(parts) == codec.wire_bytes(5, tf.float32)
  assert (codec.for_pulls, codec.for_rows) == (True, False)
  assert 'for_rows' in codec.why_not
  parts, residual = codecs.ErrorFeedback(codec).encode_with(
    tf.constant(values), tf.zeros([5])
  )
  np.testing.assert_array_equal(residual, [0, 1, 2, 0, 1])


def test_codecs_are_reached_through_the_package():
  assert tfps.codecs is codecs
  assert sorted(codecs.__all__) == codecs.__all__
  assert 'codecs' in dir(tfps)
