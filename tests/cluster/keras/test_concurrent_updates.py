"""Four workers update the same variables at once, and nothing gets lost.

All updates are alike, so that their order does not matter. So far from the
start of training, neither does their number: what optimizers correct for in the
first steps is 1 by then, to the last bit of a float32.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
import tfps.keras
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=4, ps=2)

_FIRST = 1_000_000
_CALLS, _STEPS_PER_CALL = 40, 2
_STEPS = _CALLS * _STEPS_PER_CALL

_optimizers = keras.optimizers

_CASES = {
  'SGD': lambda: _optimizers.SGD(0.1),
  'momentum': lambda: _optimizers.SGD(0.1, momentum=0.9),
  'nesterov': lambda: _optimizers.SGD(0.1, momentum=0.9, nesterov=True),
  'Adagrad': lambda: _optimizers.Adagrad(0.1),
  'Adadelta': lambda: _optimizers.Adadelta(0.1),
  'RMSprop': lambda: _optimizers.RMSprop(0.1),
  'RMSprop-centered': lambda: _optimizers.RMSprop(
    0.1, momentum=0.5, centered=True
  ),
  'Ftrl': lambda: _optimizers.Ftrl(0.1),
  'Adam': lambda: _optimizers.Adam(0.1),
  'lazy Adam': lambda: tfps.keras.optimizers.lazy(_optimizers.Adam(0.1)),
  'AMSGrad': lambda: _optimizers.Adam(0.1, amsgrad=True),
  'AdamW': lambda: _optimizers.AdamW(0.1),
  'Adamax': lambda: _optimizers.Adamax(0.1),
  'Nadam': lambda: _optimizers.Nadam(0.1),
  'Lion': lambda: _optimizers.Lion(0.1),
  'weight decay': lambda: _optimizers.SGD(0.1, weight_decay=0.02),
  'moving average': lambda: _optimizers.SGD(0.0, use_ema=True),
}

_ROWS, _READ = 20_000, 2000
_RANDOM = np.random.default_rng(0)


def _normal(*shape):
  return _RANDOM.normal(size=shape).astype('f')


# Matrices are in shards. Only some rows of the tables have gradients, some of
# them several.
_START = {
  'vector': _normal(_ROWS),
  'matrix': _normal(_ROWS, 2),
  'table': _normal(_ROWS),
  'table_in_shards': _normal(_ROWS, 2),
}
_INDICES = _RANDOM.integers(0, _ROWS // 10, _READ) * 10
_GRADIENTS = [
  _normal(_ROWS),
  _normal(_ROWS, 2),
  _normal(_READ),
  _normal(_READ, 2),
]


def _gradients(values=_GRADIENTS):
  vector, matrix, rows, rows_of_two = map(tf.constant, values)
  indices = tf.constant(_INDICES)
  return [
    vector,
    matrix,
    tf.IndexedSlices(rows, indices, tf.constant([_ROWS])),
    tf.IndexedSlices(rows_of_two, indices, tf.constant([_ROWS, 2])),
  ]


def _shard_matrices(shape, dtype, axis=0):
  num_shards = 2 if len(shape) > 1 else 1
  return partitioners.FixedShards(num_shards)(shape, dtype, axis)


@pytest.fixture
def strategy(tfps_cluster):
  return tfps.ParameterServerStrategy(tfps_cluster.cluster, _shard_matrices)


def _made(make):
  variables = [keras.Variable(value, name=n) for n, value in _START.items()]
  optimizer = make()
  optimizer.build(variables)
  optimizer._iterations.assign(_FIRST)
  if hasattr(optimizer, '_u_product'):
    # The product of momenta: small enough to leave 1 - product at 1.
    optimizer._u_product.assign(1e-30)
  return optimizer, variables


def _by_workers(strategy, optimizer, variables, values=_GRADIENTS):
  @tf.function
  def steps():
    for _ in range(_STEPS_PER_CALL):
      strategy.run(lambda: optimizer.apply(_gradients(values), variables))

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    for _ in range(_CALLS):
      coordinator.schedule(steps)
    coordinator.join()


def _alone(optimizer, variables):
  """By Keras itself, which does not sum what several gradients of a row do."""
  step = tf.function(
    lambda *gradients: optimizer.apply(list(gradients), variables)
  )
  gradients = list(map(tf.convert_to_tensor, _gradients()))
  for _ in range(_STEPS):
    step(*gradients)


def _values(optimizer, variables):
  return [v.numpy() for v in [*variables, *optimizer.variables]]


# Other tests look for the same values without concurrence.
@pytest.mark.exhaustive
@pytest.mark.parametrize('name', list(_CASES))
def test_no_update_is_lost(strategy, name):
  with strategy.scope():
    optimizer, variables = _made(_CASES[name])
  assert len(variables[1].value.variables) == 2
  _by_workers(strategy, optimizer, variables)
  assert int(optimizer.iterations) == _FIRST + _STEPS
  expected = _made(_CASES[name])
  _alone(*expected)
  for ours, theirs in zip(
    _values(optimizer, variables), _values(*expected), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_nothing_is_lost_that_accumulates(strategy):
  """What was not applied is still there; all numbers are exact."""
  with strategy.scope():
    optimizer, variables = _made(
      lambda: _optimizers.SGD(1.0, gradient_accumulation_steps=2)
    )
  for variable in variables:
    variable.assign(tf.zeros(variable.shape))
  ones = [np.ones_like(gradient) for gradient in _GRADIENTS]
  _by_workers(strategy, optimizer, variables, ones)
  for variable, accumulated, gradient in zip(
    variables, optimizer._accumulated_gradients, _gradients(ones), strict=True
  ):
    np.testing.assert_array_equal(
      accumulated.numpy() - 2 * variable.numpy(),
      _STEPS * tf.convert_to_tensor(gradient).numpy(),
    )


_MANY_CALLS = 150


def _many_steps(strategy, step, calls=_MANY_CALLS):
  """Executes a step on all workers, twice in each of many calls."""

  @tf.function
  def steps():
    for _ in range(_STEPS_PER_CALL):
      strategy.run(step)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    for _ in range(calls):
      coordinator.schedule(steps)
    coordinator.join()


@pytest.mark.exhaustive
def test_the_scale_of_a_loss_grows_as_often_as_in_a_single_process(strategy):
  with strategy.scope():
    variable = keras.Variable(np.zeros([3], 'f'))
    optimizer = keras.optimizers.LossScaleOptimizer(
      keras.optimizers.SGD(1.0), initial_scale=1.0, dynamic_growth_steps=15
    )
    optimizer.build([variable])

  def step():
    with tf.GradientTape() as tape:
      loss = optimizer.scale_loss(tf.reduce_sum(variable.value))
    optimizer.apply([tape.gradient(loss, variable.value)], [variable])

  _many_steps(strategy, step)
  assert float(optimizer.dynamic_scale) == 2 ** (2 * _MANY_CALLS // 15)
  assert int(optimizer.step_counter) == 0
  # A gradient was divided by what its own loss was multiplied by.
  np.testing.assert_array_equal(variable.numpy(), -2 * _MANY_CALLS)


def test_a_gradient_that_is_not_finite_halves_the_scale_once(strategy):
  with strategy.scope():
    variable = keras.Variable(np.zeros([3], 'f'))
    optimizer = keras.optimizers.LossScaleOptimizer(
      keras.optimizers.SGD(1.0), initial_scale=1.0
    )
    optimizer.build([variable])
  _many_steps(
    strategy, lambda: optimizer.apply([tf.constant([1.0, np.inf, 0.0])]), 20
  )
  assert float(optimizer.dynamic_scale) == 0.5**40
  assert not variable.numpy().any()
  assert int(optimizer.iterations) == 0


@pytest.mark.exhaustive
def test_gradients_of_several_steps_make_as_many_updates_as_alone(strategy):
  with strategy.scope():
    variable = keras.Variable(np.ones([3], 'f'))
    optimizer = keras.optimizers.SGD(
      1.0, weight_decay=0.5, gradient_accumulation_steps=15
    )
    optimizer.build([variable])
  # Each update decays the value by half.
  _many_steps(strategy, lambda: optimizer.apply([tf.zeros([3])], [variable]))
  assert variable.numpy()[0] == 0.5 ** (2 * _MANY_CALLS // 15)


class CountsOverwriting(keras.optimizers.SGD):
  def build(self, variables):
    super().build(variables)
    self.number = tf.Variable(0, trainable=False)

  def _overwrite_model_variables_with_average_value(self, variables):
    super()._overwrite_model_variables_with_average_value(variables)
    self.number.assign_add(1)


@pytest.mark.exhaustive
def test_averages_overwrite_weights_as_often_as_in_a_single_process(strategy):
  with strategy.scope():
    variable = keras.Variable(np.ones([3], 'f'))
    optimizer = CountsOverwriting(1.0, use_ema=True, ema_overwrite_frequency=15)
    optimizer.build([variable])
  _many_steps(strategy, lambda: optimizer.apply([tf.ones([3])], [variable]))
  assert int(optimizer.number) == 2 * _MANY_CALLS // 15
