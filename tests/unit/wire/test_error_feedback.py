"""What error feedback keeps and sends later, in this process."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
from tfps import codecs


def _name(value):
  return getattr(value, 'name', str(value))


_SIZE = 300
_CODECS = (
  codecs.Float16(),
  codecs.BFloat16(),
  codecs.Int8(64),
  codecs.Int8(64, stochastic=True),
  codecs.TopK(0.1),
  codecs.RandomK(0.1),
  codecs.OneBit(64),
)
_by_codec = pytest.mark.parametrize('codec', _CODECS, ids=str)


def _run(codec, gradients, dtype=tf.float32):
  """The sum of what is sent, and all residuals."""
  feedback = codecs.ErrorFeedback(codec)

  @tf.function(autograph=False)
  def step(gradient, residual):
    parts, residual = feedback.encode_with(gradient, residual)
    return feedback.decode(parts, _SIZE, dtype), residual

  residuals = [feedback.initial_residual(_SIZE, dtype)]
  sent = []
  for gradient in gradients:
    decoded, residual = step(tf.cast(gradient, dtype), residuals[-1])
    sent.append(tf.cast(decoded, tf.float64).numpy())
    residuals.append(residual)
  return sent, [residual.numpy() for residual in residuals]


def _gradients(num_steps):
  random = np.random.default_rng(0)
  return random.normal(0.1, 1.0, size=(num_steps, _SIZE))


@pytest.mark.parametrize(
  ('codec', 'dtype', 'tolerance'),
  [
    *((codec, tf.float32, 1e-4) for codec in _CODECS),
    (codecs.TopK(0.1), tf.float64, 1e-12),
    *(
      pytest.param(codec, tf.float64, 1e-12, marks=pytest.mark.exhaustive)
      for codec in _CODECS
      if not isinstance(codec, codecs.TopK)
    ),
    (codecs.TopK(0.1), tf.float16, 1e-3),
    (codecs.OneBit(64), tf.bfloat16, 1e-3),
  ],
  ids=_name,
)
def test_what_is_sent_and_the_residual_are_all_gradients(
  codec, dtype, tolerance
):
  gradients = [tf.cast(g, dtype) for g in _gradients(30)]
  total = sum(tf.cast(g, tf.float64).numpy() for g in gradients)
  sent, residuals = _run(codec, gradients, dtype)
  np.testing.assert_allclose(sum(sent) + residuals[-1], total, atol=tolerance)


@pytest.mark.parametrize(
  'codec',
  turns.rarely(_CODECS, but=[codecs.TopK(0.1), codecs.OneBit(64)]),
  ids=str,
)
def test_residuals_do_not_grow_for_ever(codec):
  _, residuals = _run(codec, _gradients(200))
  norms = [np.linalg.norm(residual) for residual in residuals]
  assert max(norms[150:]) < 1.5 * max(norms[50:150])


def test_what_is_left_out_is_sent_later():
  gradient = np.zeros(_SIZE)
  gradient[:3] = [1.0, 0.5, 0.25]
  sent, _ = _run(codecs.TopK(1 / _SIZE), [gradient, *np.zeros((2, _SIZE))])
  assert [step.sum() for step in sent] == [1.0, 0.5, 0.25]


@_by_codec
@pytest.mark.parametrize('bad', [np.nan, np.inf], ids=str)
def test_a_bad_gradient_is_seen_once_and_not_kept(codec, bad):
  gradients = _gradients(3)
  gradients[1, 70] = bad
  sent, residuals = _run(codec, gradients)
  seen = [bool(np.isfinite(step).all()) for step in sent]
  assert seen == [True, False, True]
  assert np.isfinite(residuals).all()


def test_residuals_have_a_type_that_holds_small_errors():
  feedback = codecs.ErrorFeedback(codecs.OneBit())
  for dtype, kept in (
    (tf.float16, tf.float32),
    (tf.bfloat16, tf.float32),
    (tf.float32, tf.float32),
    (tf.float64, tf.float64),
  ):
    assert feedback.initial_residual(2, dtype).dtype == kept


@_by_codec
def test_it_encodes_and_counts_as_the_codec_itself(codec):
  feedback = codecs.ErrorFeedback(codec)
  values = tf.cast(_gradients(1)[0], tf.float32)
  for ours, own in zip(
    feedback.encode(values), codec.encode(values), strict=True
  ):
    assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
  num_bytes = feedback.wire_bytes(_SIZE, tf.float32)
  assert num_bytes == codec.wire_bytes(_SIZE, tf.float32)
  assert feedback.is_lossless == codec.is_lossless
  assert not feedback.for_pulls
  assert not feedback.for_rows
  assert feedback.why_not


@pytest.mark.parametrize(
  ('codec', 'message'),
  [
    (
      codecs.ErrorFeedback(codecs.OneBit()),
      r'no use to ErrorFeedback\(.*it has that already',
    ),
    (
      codecs.RandomK(0.1, unbiased=True),
      r'no use to RandomK\(.*make the error grow from step to step',
    ),
    ('int8', "'int8' is no codec. Give one"),
    (codecs.Int8, 'Int8.* is no codec. Give one'),
  ],
)
def test_what_it_cannot_help_is_refused(codec, message):
  with pytest.raises(ValueError, match=message):
    codecs.ErrorFeedback(codec)


def test_a_residual_of_another_buffer_is_refused():
  feedback = codecs.ErrorFeedback(codecs.TopK(0.5))
  with pytest.raises(ValueError, match=r'residual has shape \(1,\)'):
    feedback.encode_with(tf.zeros([4]), tf.zeros([1]))
