"""Several steps make one update, under both strategies."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_RATE = 0.05
_SIZE = 8
_NUM_STEPS = 5
_RNG = np.random.default_rng(0)
_X = _RNG.integers(0, 12, (_SIZE * _NUM_STEPS, 3))
_Y = _RNG.random((_SIZE * _NUM_STEPS, 1), dtype='f')
_ROUNDS = (range(0, 2), range(2, 4), range(4, 5))

_STRATEGIES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
}


def under(*often):
  """Runs a test under these strategies, and with --exhaustive under both."""
  return pytest.mark.parametrize(
    'make_strategy',
    [
      pytest.param(
        make, id=name, marks=[] if name in often else pytest.mark.exhaustive
      )
      for name, make in _STRATEGIES.items()
    ],
  )


both = under(*_STRATEGIES)
_WAYS = {
  'coordinator, in shards': (
    tfps.ParameterServerStrategy,
    partitioners.FixedShards(2),
  ),
  'between graphs, whole': (tfps.BetweenGraphStrategy, None),
}


def in_way(often):
  """Runs a test in this way, and with --exhaustive in the other one too."""
  return pytest.mark.parametrize(
    ('make_strategy', 'partitioner'),
    [
      pytest.param(
        *way, id=name, marks=[] if name == often else pytest.mark.exhaustive
      )
      for name, way in _WAYS.items()
    ],
  )


coordinated_in_shards = in_way('coordinator, in shards')
between_graphs = in_way('between graphs, whole')


def _model(optimizer, *inner) -> keras.Model:
  keras.utils.set_random_seed(3)
  model = keras.Sequential(
    [
      layers.Input((3,), dtype='int32'),
      layers.Embedding(12, 4),
      layers.Flatten(),
      *inner,
      layers.Dense(1, 'tanh'),
    ]
  )
  model.compile(optimizer, 'mse', steps_per_execution=_NUM_STEPS)
  return model


def _descent():
  return keras.optimizers.SGD(_RATE)


def _scaled_descent():
  return keras.optimizers.LossScaleOptimizer(_descent())


def _batch(step):
  rows = slice(step * _SIZE, (step + 1) * _SIZE)
  return _X[rows], _Y[rows]


def _gradients(model, step):
  x, y = _batch(step)
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
  gradients = tape.gradient(loss, model.trainable_weights)
  return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _fit(
  make_strategy, cluster, partitioner, updates, make_optimizer, *inner, **how
):
  """Trains for an epoch; gives strategy and model."""
  strategy = make_strategy(cluster, partitioner, updates=updates, **how)
  with strategy.scope():
    model = _model(make_optimizer(), *inner)
  model.fit(_X, _Y, batch_size=_SIZE, shuffle=False, verbose=0)
  return strategy, model


def _assert_weights(model, expected, rtol=1e-5):
  for weight, other in zip(model.weights, expected.weights, strict=True):
    if weight.dtype.startswith('float'):
      np.testing.assert_allclose(
        weight.numpy(), other.numpy(), rtol=rtol, atol=1e-6
      )


def _momentum():
  return keras.optimizers.SGD(_RATE, 0.9)


def _clipped_adam():
  return keras.optimizers.Adam(_RATE, clipnorm=0.1)


@pytest.mark.exhaustive
@coordinated_in_shards
def test_the_mean_of_gradients_makes_one_update(
  tfps_cluster, make_strategy, partitioner
):
  make = _momentum if partitioner is None else _clipped_adam
  accumulate = tfps.updates.Accumulate(2)
  _, model = _fit(
    make_strategy, tfps_cluster.cluster, partitioner, accumulate, make
  )
  alone = _model(make())
  for steps in _ROUNDS:
    found = [_gradients(alone, step) for step in steps]
    means = [
      tf.reduce_mean(tf.stack(each), 0) for each in zip(*found, strict=True)
    ]
    alone.optimizer.apply(means, alone.trainable_weights)
  _assert_weights(model, alone)
  assert int(model.optimizer.iterations) == len(_ROUNDS)


def _after_local_steps(model, steps, rate):
  """What gradient descent makes of a model's weights, from where they are."""
  start = [w.numpy() for w in model.trainable_weights]
  for step in steps:
    gradients = _gradients(model, step)
    for weight, gradient in zip(
      model.trainable_weights, gradients, strict=True
    ):
      weight.assign(weight - rate * gradient)
  end = [w.numpy() for w in model.trainable_weights]
  for weight, value in zip(model.trainable_weights, start, strict=True):
    weight.assign(value)
  return start, end


@between_graphs
def test_local_steps_are_gradient_descent(
  tfps_cluster, make_strategy, partitioner
):
  policy = tfps.updates.LocalSteps(2, inner_learning_rate=_RATE)
  strategy, model = _fit(
    make_strategy, tfps_cluster.cluster, partitioner, policy, _descent
  )
  alone = _model(_descent())
  alone.fit(_X, _Y, batch_size=_SIZE, shuffle=False, verbose=0)
  _assert_weights(model, alone)
  assert int(model.optimizer.iterations) == len(_ROUNDS)
  assert strategy.wire_report().steps == _NUM_STEPS


@pytest.mark.parametrize(
  ('make_strategy', 'policies'),
  turns.by_turns(
    {
      'all keys': {},
      'some keys': {
        'admission': tfps.embeddings.Counter(2),
        'eviction': tfps.embeddings.Lru(100),
      },
    },
    {name: (make,) for name, make in _STRATEGIES.items()},
    rarely=['all keys'],
  ),
)
def test_local_steps_change_looked_up_rows(
  tfps_cluster, make_strategy, policies
):
  # Keys are repeated in a batch, and some are new in each step of a round.
  keys = np.array([[step, step, 0, step // 2, 7] for step in range(4)])

  def trained():
    embed = tfps.embeddings.Embedding(1, 'ones', **policies)
    model = keras.Sequential([layers.Input((), dtype='int64'), embed])
    model.compile(_descent(), 'mse', steps_per_execution=len(keys))
    model.fit(
      keys.ravel(), np.zeros(keys.size), batch_size=5, shuffle=False, verbose=0
    )
    return embed(np.arange(8)).numpy()

  policy = tfps.updates.LocalSteps(3, inner_learning_rate=_RATE)
  with make_strategy(tfps_cluster.cluster, updates=policy).scope():
    found = trained()
  np.testing.assert_allclose(found, trained(), rtol=1e-6)
  assert len(np.unique(found)) > 3


class WithAWriteInABranch(keras.Model):
  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(1)

  def call(self, x):
    return self.dense(keras.ops.cast(x, 'float32'))

  def train_step(self, data):
    bias = self.dense.bias
    tf.cond(
      tf.reduce_sum(data[1]) > 0,
      lambda: bias.assign(bias * 0.5),
      lambda: bias.value,
    )
    return super().train_step(data)


@under('coordinator')
def test_what_cannot_be_changed_locally_is_refused(tfps_cluster, make_strategy):
  policy = tfps.updates.LocalSteps(2, inner_learning_rate=_RATE)
  strategy = make_strategy(tfps_cluster.cluster, updates=policy)
  with strategy.scope():
    model = WithAWriteInABranch()
    model.compile('sgd', 'mse', steps_per_execution=2)
  with pytest.raises(ValueError, match=r'LocalSteps.*bias.*on the worker only'):
    model.fit(_X, _Y, batch_size=_SIZE, verbose=0)


@pytest.mark.exhaustive
@between_graphs
def test_an_outer_optimizer_gets_what_local_steps_have_changed(
  tfps_cluster, make_strategy, partitioner
):
  outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
  policy = tfps.updates.LocalSteps(2, inner_learning_rate=_RATE, outer=outer)
  _, model = _fit(
    make_strategy, tfps_cluster.cluster, partitioner, policy, _descent
  )
  alone, own_outer = _model(_descent()), policy.make_outer()
  for steps in _ROUNDS:
    start, end = _after_local_steps(alone, steps, _RATE)
    changes = [tf.constant(s - e) for s, e in zip(start, end, strict=True)]
    own_outer.apply(changes, alone.trainable_weights)
  _assert_weights(model, alone)
  own = model.optimizer.outer_optimizer
  assert int(own.iterations) == len(_ROUNDS)
  assert int(model.optimizer.iterations) == len(_ROUNDS)
  devices = {
    shard.device
    for v in own.variables
    for shard in getattr(v.value, 'variables', [v.value])
  }
  assert all('/job:ps' in device for device in devices)


@pytest.mark.exhaustive
@between_graphs
def test_moving_averages_see_every_step(
  tfps_cluster, make_strategy, partitioner
):
  policy = tfps.updates.LocalSteps(2, inner_learning_rate=_RATE)
  normalization = layers.BatchNormalization(momentum=0.9)
  _, model = _fit(
    make_strategy,
    tfps_cluster.cluster,
    partitioner,
    policy,
    _descent,
    normalization,
  )
  other = layers.BatchNormalization(momentum=0.9)
  alone = _model(_descent(), other)
  alone.fit(_X, _Y, batch_size=_SIZE, shuffle=False, verbose=0)
  _assert_weights(model, alone, rtol=1e-4)


@pytest.mark.exhaustive
@coordinated_in_shards
def test_losses_are_unscaled_for_local_steps(
  tfps_cluster, make_strategy, partitioner
):
  policy = tfps.updates.LocalSteps(2, inner_learning_rate=_RATE)
  _, model = _fit(
    make_strategy, tfps_cluster.cluster, partitioner, policy, _scaled_descent
  )
  alone = _model(_descent())
  alone.fit(_X, _Y, batch_size=_SIZE, shuffle=False, verbose=0)
  _assert_weights(model, alone)


def _outer_descent():
  return keras.optimizers.SGD(1.0)


_OUTERS = turns.rarely([lambda: None, _outer_descent], but=[_outer_descent])


def _trained_line(optimizer, x, y):
  keras.utils.set_random_seed(3)
  model = keras.Sequential([layers.Input((3,)), layers.Dense(1)])
  model.compile(optimizer, 'mse', steps_per_execution=_NUM_STEPS)
  seen = model.fit(x, y, batch_size=_SIZE, shuffle=False, verbose=0)
  return model, seen.history['loss']


@pytest.mark.parametrize('make_outer', _OUTERS)
@under('coordinator')
def test_a_factor_of_the_loss_does_not_change_local_steps(
  tfps_cluster, make_strategy, make_outer
):
  x, rate = _X.astype('f'), 0.005
  policy = tfps.updates.LocalSteps(2, rate, outer=make_outer())
  strategy = make_strategy(tfps_cluster.cluster, updates=policy)
  with strategy.scope():
    scaled = keras.optimizers.SGD(rate, loss_scale_factor=64.0)
    model, _ = _trained_line(scaled, x, _Y)
  alone, _ = _trained_line(keras.optimizers.SGD(rate), x, _Y)
  _assert_weights(model, alone)
  assert int(model.optimizer.iterations) == len(_ROUNDS)


@pytest.mark.parametrize('make_outer', _OUTERS)
@both
def test_a_round_is_left_out_whose_gradients_overflow(
  tfps_cluster, make_strategy, make_outer
):
  scale, rate = 2.0**100, 0.005
  x, y = _X.astype('f'), _Y.copy()
  y[2 * _SIZE : 3 * _SIZE] = 1e12  # the first step of the second round

  policy = tfps.updates.LocalSteps(2, rate, outer=make_outer())
  strategy = make_strategy(tfps_cluster.cluster, updates=policy)
  with strategy.scope():
    optimizer = keras.optimizers.LossScaleOptimizer(
      keras.optimizers.SGD(rate), initial_scale=scale, dynamic_growth_steps=2
    )
    model, loss = _trained_line(optimizer, x, y)
  kept = [*range(2 * _SIZE), *range(4 * _SIZE, len(x))]
  alone, _ = _trained_line(keras.optimizers.SGD(rate), x[kept], y[kept])
  _assert_weights(model, alone)
  assert np.isfinite(loss).all()  # the second round's last step too
  assert float(optimizer.dynamic_scale) == scale / 2
  assert int(optimizer.step_counter) == 1
  assert int(optimizer.iterations) == 2


@both
def test_the_scale_of_a_loss_grows_with_outer_updates(
  tfps_cluster, make_strategy
):
  policy = tfps.updates.LocalSteps(2, _RATE, outer=_outer_descent())
  _, model = _fit(
    make_strategy,
    tfps_cluster.cluster,
    None,
    policy,
    lambda: keras.optimizers.LossScaleOptimizer(
      _descent(), initial_scale=8.0, dynamic_growth_steps=1
    ),
  )
  alone = _model(_descent())
  alone.fit(_X, _Y, batch_size=_SIZE, shuffle=False, verbose=0)
  _assert_weights(model, alone)
  assert float(model.optimizer.dynamic_scale) == 8.0 * 2 ** len(_ROUNDS)


@under('coordinator')
def test_fewer_updates_send_fewer_bytes(tfps_cluster, make_strategy):
  sent = []
  for updates in (None, tfps.updates.LocalSteps(_NUM_STEPS, _RATE)):
    strategy = make_strategy(tfps_cluster.cluster, updates=updates)
    with strategy.scope():
      model = keras.Sequential([layers.Input((3,)), layers.Dense(500)])
      model.compile(_descent(), 'mse', steps_per_execution=_NUM_STEPS)
    model.fit(_X, _X[:, :1], batch_size=_SIZE, verbose=0)
    report = strategy.wire_report()
    assert report.steps == _NUM_STEPS
    sent.append((sum(report.pulled), sum(report.pushed)))
  (pulled, pushed), (few_pulled, few_pushed) = sent
  assert pulled == pytest.approx(_NUM_STEPS * few_pulled, rel=0.01)
  assert pushed == pytest.approx(_NUM_STEPS * few_pushed, rel=0.01)


@pytest.mark.exhaustive
@under('between graphs')
def test_updates_come_one_round_late_if_prefetched(tfps_cluster, make_strategy):
  policy = tfps.updates.Accumulate(2)
  wire = tfps.Wire(prefetch=1)
  _, model = _fit(
    make_strategy,
    tfps_cluster.cluster,
    None,
    policy,
    _descent,
    wire=wire,
  )
  # Each round's gradients are those at the weights before the last update.
  alone = _model(_descent())
  seen = [alone.get_weights()]
  for first in range(0, _NUM_STEPS, 2):
    now = alone.get_weights()
    alone.set_weights(seen[-2] if len(seen) > 1 else seen[-1])
    steps = range(first, min(first + 2, _NUM_STEPS))
    found = [_gradients(alone, step) for step in steps]
    alone.set_weights(now)
    means = [
      tf.reduce_mean(tf.stack(each), 0) for each in zip(*found, strict=True)
    ]
    alone.optimizer.apply(means, alone.trainable_weights)
    seen.append(alone.get_weights())
  dense = [w for w in model.weights if 'embedding' not in w.path]
  others = [w for w in alone.weights if 'embedding' not in w.path]
  assert len(dense) == 2
  for weight, other in zip(dense, others, strict=True):
    np.testing.assert_allclose(weight.numpy(), other.numpy(), rtol=0.05)


class InABranch(keras.Model):
  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(1)

  def call(self, x):
    return self.dense(keras.ops.cast(x, 'float32'))

  def train_step(self, data):
    x, y = data
    with tf.GradientTape() as tape:
      loss = self.compute_loss(y=y, y_pred=self(x))
    gradients = tape.gradient(loss, self.trainable_weights)

    def apply():
      self.optimizer.apply(gradients, self.trainable_weights)
      return True

    tf.cond(loss > 0, apply, lambda: False)
    return {'loss': loss}


@both
def test_what_cannot_be_gathered_is_refused(tfps_cluster, make_strategy):
  policy = tfps.updates.Accumulate(4)
  strategy = make_strategy(tfps_cluster.cluster, updates=policy)
  with strategy.scope():
    model = InABranch()
    model.compile('sgd', 'mse', steps_per_execution=4)
  with pytest.raises(ValueError, match=r'Accumulate\(n=4\).*within a tf.cond'):
    model.fit(_X, _Y, batch_size=_SIZE, verbose=0)


@both
def test_an_execution_too_short_for_an_update_is_refused(
  tfps_cluster, make_strategy
):
  policy = tfps.updates.LocalSteps(8, 0.1)
  strategy = make_strategy(tfps_cluster.cluster, updates=policy)
  with strategy.scope():
    model = _model('sgd')
    model.steps_per_execution = 2
  with pytest.raises(
    ValueError, match=r'steps_per_execution: 2.*Raise .* to 8'
  ):
    model.fit(_X, _Y, batch_size=_SIZE, verbose=0)


def test_a_wire_without_fusing_is_refused(tfps_cluster):
  with pytest.raises(ValueError, match='needs the wire to fuse'):
    tfps.ParameterServerStrategy(
      tfps_cluster.cluster,
      wire=tfps.Wire(fuse=False),
      updates=tfps.updates.Accumulate(2),
    )
