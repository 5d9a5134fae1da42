"""Rules against Keras' own optimizers, in this process."""

from functools import partial

import keras
from keras import optimizers
import numpy as np
import pytest
import tensorflow as tf

from tfps.updates import adam_rules
from tfps.updates import apply
from tfps.updates import rules

_RATE = 0.1

# How to make Keras' optimizer, the rule, and the initial values of its slots.
_CASES = {
  'sgd': (partial(optimizers.SGD, _RATE), rules.Sgd(), []),
  'momentum': (partial(optimizers.SGD, _RATE, 0.9), rules.Momentum(0.9), [0.0]),
  'nesterov': (
    partial(optimizers.SGD, _RATE, 0.9, nesterov=True),
    rules.Momentum(0.9, nesterov=True),
    [0.0],
  ),
  'adagrad': (partial(optimizers.Adagrad, _RATE), rules.Adagrad(1e-7), [0.1]),
  'rmsprop': (
    partial(optimizers.RMSprop, _RATE),
    rules.RmsProp(0.9, 0.0, 1e-7),
    [0.0],
  ),
  'rmsprop-momentum': (
    partial(optimizers.RMSprop, _RATE, momentum=0.5),
    rules.RmsProp(0.9, 0.5, 1e-7),
    [0.0, 0.0],
  ),
  'rmsprop-centered': (
    partial(optimizers.RMSprop, _RATE, centered=True),
    rules.RmsProp(0.9, 0.0, 1e-7, centered=True),
    [0.0, 0.0],
  ),
  'rmsprop-all': (
    partial(optimizers.RMSprop, _RATE, momentum=0.5, centered=True),
    rules.RmsProp(0.9, 0.5, 1e-7, centered=True),
    [0.0, 0.0, 0.0],
  ),
  'adadelta': (
    partial(optimizers.Adadelta, _RATE),
    rules.Adadelta(0.95, 1e-7),
    [0.0, 0.0],
  ),
  'ftrl': (
    partial(
      optimizers.Ftrl,
      _RATE,
      l1_regularization_strength=0.01,
      l2_regularization_strength=0.02,
      l2_shrinkage_regularization_strength=0.03,
      beta=0.1,
    ),
    rules.Ftrl(-0.5, 0.01, 0.02, 0.03, 0.1),
    [0.1, 0.0],
  ),
  'adam': (
    partial(optimizers.Adam, _RATE),
    adam_rules.Adam(0.9, 0.999, 1e-7),
    [0.0, 0.0],
  ),
  'amsgrad': (
    partial(optimizers.Adam, _RATE, amsgrad=True),
    adam_rules.Adam(0.9, 0.999, 1e-7),
    [0.0, 0.0, 0.0],
  ),
  'adamax': (
    partial(optimizers.Adamax, _RATE),
    adam_rules.Adamax(0.9, 0.999, 1e-7),
    [0.0, 0.0],
  ),
  'nadam': (
    partial(optimizers.Nadam, _RATE),
    adam_rules.Nadam(0.9, 0.999, 1e-7),
    [0.0, 0.0],
  ),
  'lion': (partial(optimizers.Lion, _RATE), adam_rules.Lion(0.9, 0.99), [0.0]),
}

_START = np.linspace(-1, 1, 12, dtype='f').reshape(4, 3)
_GRADIENTS = np.random.default_rng(0).normal(size=(3, 4, 3)).astype('f')


def _steps(num_steps):
  product = tf.constant(1.0)
  for i in range(1, num_steps + 1):
    count = tf.constant(i, tf.int64)
    momentum = 1.0 - 0.5 * tf.pow(0.96, tf.cast(count, tf.float32))
    product = product * 0.9 * momentum
    yield rules.Step(tf.constant(_RATE), count, product)


def _dense(gradient):
  return tf.constant(gradient)


def _with_duplicates(gradient):
  """Three of its rows, two of them in parts."""
  indices = [2, 0, 2, 0, 3]
  values = gradient[indices] * [[0.25], [0.5], [0.75], [0.5], [1.0]]
  return tf.IndexedSlices(
    tf.constant(values, tf.float32), tf.constant(indices), tf.constant([4, 3])
  )


def _by_keras(make_optimizer, gradients, **changes):
  optimizer = make_optimizer(**changes)
  variable = keras.Variable(_START)
  optimizer.build([variable])
  step = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
  for gradient in gradients:
    step(tf.constant(gradient))
  return variable.numpy()


def _by_rule(rule, initial, gradients, **options):
  variable = tf.Variable(_START)
  slots = [tf.Variable(np.full_like(_START, value)) for value in initial]

  @tf.function
  def update(gradient, step):
    apply.apply(
      [apply.Update(rule, variable, slots, gradient, **options)], step
    )

  for gradient, step in zip(gradients, _steps(len(gradients)), strict=True):
    update(gradient, step)
  return [variable.numpy(), *(slot.numpy() for slot in slots)]


@pytest.mark.parametrize('name', _CASES)
def test_values_are_keras_to_the_last_bit(name):
  make_optimizer, rule, initial = _CASES[name]
  value, *_ = _by_rule(rule, initial, list(map(_dense, _GRADIENTS)))
  np.testing.assert_array_equal(value, _by_keras(make_optimizer, _GRADIENTS))


@pytest.mark.parametrize('name', ['sgd', 'momentum'])
def test_the_one_operation_does_what_the_formula_says(name, monkeypatch):
  _, rule, initial = _CASES[name]
  gradients = list(map(_dense, _GRADIENTS))
  by_kernel = _by_rule(rule, initial, gradients)
  monkeypatch.setattr(type(rule), 'run_kernel', rules.Rule.run_kernel)
  np.testing.assert_array_equal(by_kernel, _by_rule(rule, initial, gradients))


@pytest.mark.parametrize('name', ['sgd', 'adagrad', 'adam'])
def test_weights_decay_as_in_keras(name):
  make_optimizer, rule, initial = _CASES[name]
  gradients = list(map(_dense, _GRADIENTS))
  value, *_ = _by_rule(rule, initial, gradients, decay=0.02)
  expected = _by_keras(make_optimizer, _GRADIENTS, weight_decay=0.02)
  np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize('name', _CASES)
def test_rows_are_summed_and_the_others_get_a_gradient_of_zero(name):
  _, rule, initial = _CASES[name]
  gradients = _GRADIENTS.copy()
  gradients[:, 1] = 0.0
  sparse = list(map(_with_duplicates, gradients))
  summed = [tf.convert_to_tensor(gradient) for gradient in sparse]
  for actual, expected in zip(
    _by_rule(rule, initial, sparse),
    _by_rule(rule, initial, summed),
    strict=True,
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('name', _CASES)
def test_lazily_only_rows_with_a_gradient_change(name):
  _, rule, initial = _CASES[name]
  sparse = list(map(_with_duplicates, _GRADIENTS))
  summed = [tf.convert_to_tensor(gradient) for gradient in sparse]
  untouched = [_START, *(np.full_like(_START, value) for value in initial)]
  lazily = _by_rule(rule, initial, sparse, lazy=True, decay=0.02)
  densely = _by_rule(rule, initial, summed, decay=0.02)
  for actual, dense, start in zip(lazily, densely, untouched, strict=True):
    touched = [0, 2, 3]
    np.testing.assert_array_equal(actual[1], start[1])
    np.testing.assert_allclose(
      actual[touched], dense[touched], rtol=1e-6, atol=1e-7
    )
