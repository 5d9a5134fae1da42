"""Optimizers that a step of one's own is the first to use."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_STEPS = 5
_SHARDS = partitioners.FixedShards(2)

_OPTIMIZERS = {
  'Adam': lambda: keras.optimizers.Adam(0.1),
  'Adagrad': lambda: keras.optimizers.Adagrad(0.1),
  'momentum': lambda: keras.optimizers.SGD(0.1, 0.9),
  'RMSprop': lambda: keras.optimizers.RMSprop(0.1),
  'Adafactor': lambda: keras.optimizers.Adafactor(0.1),
  'averages': lambda: keras.optimizers.SGD(
    0.1, use_ema=True, gradient_accumulation_steps=2
  ),
}


def _train(strategy, step):
  """Has a training loop do the steps."""
  arguments = {'steps': _STEPS, 'steps_per_execution': 2}

  def dataset_fn(context):
    return tf.data.Dataset.from_tensors(1.0).repeat()

  if hasattr(strategy, 'train'):
    strategy.train(lambda batch: step(), dataset_fn, **arguments)
    return
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(lambda batch: step(), dataset_fn, **arguments)


def _call(strategy, step):
  """Calls or schedules a function of a step."""
  function = tf.function(step)
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    for _ in range(_STEPS):
      function()
    return
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    for _ in range(_STEPS):
      coordinator.schedule(function)
    coordinator.join()


_WAYS = {
  'train by a coordinator': (tfps.ParameterServerStrategy, None, _train),
  'call between graphs': (tfps.BetweenGraphStrategy, None, _call),
  'schedule, in shards': (tfps.ParameterServerStrategy, _SHARDS, _call),
  'train between graphs, in shards': (
    tfps.BetweenGraphStrategy,
    _SHARDS,
    _train,
  ),
  'train in graph': (tfps.replication.InGraphStrategy, None, _train),
}


def _made(make_optimizer):
  variables = [
    keras.Variable(np.ones([6, 4], 'f'), name='matrix'),
    keras.Variable(np.full([3], 2, 'f'), name='bias'),
  ]
  optimizer = make_optimizer()

  def step():
    with tf.GradientTape() as tape:
      matrix, bias = (tf.convert_to_tensor(v.value) for v in variables)
      tape.watch([matrix, bias])
      loss = tf.reduce_sum(matrix**2) + tf.reduce_sum(bias**3)
    optimizer.apply(tape.gradient(loss, [matrix, bias]), variables)

  return optimizer, variables, step


def _values(optimizer, variables):
  return [v.numpy() for v in [*variables, *optimizer.variables]]


@pytest.mark.parametrize(
  ('kind', 'partitioner', 'way', 'make_optimizer'),
  turns.by_turns(_OPTIMIZERS, _WAYS, rarely=['Adafactor', 'averages']),
)
def test_it_does_what_a_built_one_does_alone(
  tfps_cluster, kind, partitioner, way, make_optimizer
):
  strategy = kind(tfps_cluster.cluster, partitioner)
  with strategy.scope():
    optimizer, variables, step = _made(make_optimizer)
  way(strategy, step)
  slots = [v.value for v in optimizer.variables]
  shards = [s for v in slots for s in getattr(v, 'variables', [v])]
  assert all('/job:ps/' in shard.device for shard in shards)
  alone, own, step = _made(make_optimizer)
  alone.build(own)
  for _ in range(_STEPS):
    step()
  for mine, theirs in zip(
    _values(optimizer, variables), _values(alone, own), strict=True
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


class TwoOptimizers(keras.Model):
  """Trains two layers against each other."""

  def __init__(self):
    super().__init__()
    self.first = keras.layers.Dense(3)
    self.second = keras.layers.Dense(1)

  def call(self, x):
    return self.second(self.first(x))

  def compile(self, first, second):
    super().compile(loss='mse')
    self.optimizers = first, second

  def train_step(self, data):
    x, y = data
    signs = 1.0, -0.1
    for layer, optimizer, sign in zip(
      (self.first, self.second), self.optimizers, signs, strict=True
    ):
      with tf.GradientTape() as tape:
        loss = sign * tf.reduce_mean((self(x) - y) ** 2)
      variables = layer.trainable_variables
      optimizer.apply(tape.gradient(loss, variables), variables)
    return {'loss': loss}


def _fitted(x, y):
  keras.utils.set_random_seed(1)
  model = TwoOptimizers()
  model.build((None, 4))
  model.compile(keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, 0.9))
  return model, lambda: model.fit(x, y, 8, 2, shuffle=False, verbose=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_a_train_step_may_have_two(tfps_cluster, kind):
  x = np.random.default_rng(0).random((24, 4), 'f')
  y = x.sum(1, keepdims=True)
  strategy = kind(tfps_cluster.cluster)
  with strategy.scope():
    model, fit = _fitted(x, y)
  fit()
  alone, fit = _fitted(x, y)
  fit()
  for mine, theirs in zip(
    model.get_weights(), alone.get_weights(), strict=True
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
  for optimizer in model.optimizers:
    assert int(optimizer.iterations) == 6
    for variable in optimizer.variables:
      assert '/job:ps/' in variable.value.device


@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_a_loss_cannot_be_scaled_before(tfps_cluster, kind):
  strategy = kind(tfps_cluster.cluster)
  with strategy.scope():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    loss = tf.constant(1.0)
    with pytest.raises(ValueError, match='Call optimizer'):
      tf.function(lambda: optimizer.scale_loss(loss))()
