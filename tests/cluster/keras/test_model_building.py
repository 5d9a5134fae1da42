"""Models that `fit` is the first to call, with inputs of any kind."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_ROWS, _WIDTH, _N, _BATCH = 12, 3, 20, 5
_RNG = np.random.default_rng(0)
_SHARDS = partitioners.FixedShards(2)

_LENGTHS = _RNG.integers(1, 5, _N)
_RAGGED = tf.RaggedTensor.from_row_lengths(
  _RNG.integers(0, _ROWS, _LENGTHS.sum()), _LENGTHS
)
_SPARSE = tf.sparse.from_dense(_RNG.integers(0, 3, (_N, _ROWS)).astype('f'))
_NUMBERS = _RNG.random((_N, 4), 'f')
_Y = _RNG.random((_N, 1), 'f')


class OfRagged(keras.Model):
  """Sums the rows of a table that an example names."""

  def __init__(self):
    super().__init__()
    self.table = layers.Embedding(_ROWS, _WIDTH)
    self.last = layers.Dense(1)

  def call(self, inputs):
    rows = self.table(inputs['ids'].to_tensor())
    return self.last(
      tf.concat([tf.reduce_sum(rows, axis=1), inputs['x']], axis=1)
    )


class OfSparse(keras.Model):
  """Multiplies a sparse matrix with a dense one."""

  def __init__(self):
    super().__init__()
    self.last = layers.Dense(1)

  def build(self, _):
    self.kernel = self.add_weight(shape=(_ROWS, _WIDTH))

  def call(self, inputs):
    product = tf.sparse.sparse_dense_matmul(inputs['ids'], self.kernel)
    return self.last(tf.concat([product, inputs['x']], axis=1))


def _functional():
  ids = keras.Input((_ROWS,), sparse=True, name='ids')
  x = keras.Input((4,), name='x')
  hidden = layers.Dense(_WIDTH, 'relu')(ids)
  output = layers.Dense(1)(layers.Concatenate()([hidden, x]))
  return keras.Model({'ids': ids, 'x': x}, output)


_MODELS = {
  'ragged': (OfRagged, _RAGGED),
  'sparse': (OfSparse, _SPARSE),
  'sparse, functional': (_functional, _SPARSE),
}
_WAYS = {
  'coordinator': (tfps.ParameterServerStrategy, None, False),
  'between graphs, in shards, a function': (
    tfps.BetweenGraphStrategy,
    _SHARDS,
    True,
  ),
  'coordinator, in shards, a function': (
    tfps.ParameterServerStrategy,
    _SHARDS,
    True,
  ),
  'between graphs': (tfps.BetweenGraphStrategy, None, False),
}


def _dataset(ids):
  inputs = {'ids': ids, 'x': _NUMBERS}
  return tf.data.Dataset.from_tensor_slices((inputs, _Y)).batch(_BATCH)


def _compiled(make):
  keras.utils.set_random_seed(1)
  model = make()
  # With others, Keras itself does not sum the gradients of a row first.
  optimizer = keras.optimizers.SGD(0.1)
  model.compile(optimizer, 'mse', metrics=['mae'], steps_per_execution=2)
  return model


@pytest.mark.parametrize(
  ('kind', 'partitioner', 'by_function', 'case'),
  turns.by_turns(_MODELS, _WAYS, rarely=['ragged', 'sparse, functional']),
)
def test_inputs_may_be_ragged_or_sparse(
  tfps_cluster, kind, partitioner, by_function, case
):
  make, ids = case
  strategy = kind(tfps_cluster.cluster, partitioner)
  with strategy.scope():
    model = _compiled(make)
  x = (lambda context: _dataset(ids)) if by_function else _dataset(ids)
  steps = _N // _BATCH if by_function else None
  history = model.fit(x, steps_per_epoch=steps, verbose=0)
  alone = _compiled(make)
  expected = alone.fit(_dataset(ids), verbose=0)
  for name, values in expected.history.items():
    np.testing.assert_allclose(history.history[name], values, rtol=1e-5)
  for mine, theirs in zip(
    model.get_weights(), alone.get_weights(), strict=True
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
  evaluated = model.evaluate(_dataset(ids), verbose=0)
  np.testing.assert_allclose(
    evaluated, alone.evaluate(_dataset(ids), verbose=0), rtol=1e-5
  )


class Gan(keras.Model):
  """Two networks that no `call` joins."""

  def __init__(self):
    super().__init__()
    self.generator = keras.Sequential([layers.Dense(4), layers.Dense(4)])
    self.discriminator = keras.Sequential([layers.Dense(3), layers.Dense(1)])
    self.seen = keras.metrics.Mean(name='seen')

  @property
  def metrics(self):
    return [self.seen]

  def compile(self, discriminates, generates):
    super().compile(steps_per_execution=2)
    self.discriminates, self.generates = discriminates, generates

  def train_step(self, x):
    with tf.GradientTape() as tape:
      scores = self.discriminator(x) - self.discriminator(self.generator(-x))
      loss = tf.reduce_mean(tf.nn.softplus(-scores))
    variables = self.discriminator.trainable_variables
    self.discriminates.apply(tape.gradient(loss, variables), variables)
    with tf.GradientTape() as tape:
      scores = self.discriminator(self.generator(-x))
      loss = tf.reduce_mean(tf.nn.softplus(-scores))
    variables = self.generator.trainable_variables
    self.generates.apply(tape.gradient(loss, variables), variables)
    self.seen.update_state(loss)
    return {'seen': self.seen.result()}


def _fit_gan(scope=None):
  keras.utils.set_random_seed(1)
  with scope or tf.name_scope(''):
    model = Gan()
    model.compile(keras.optimizers.Adam(0.1), keras.optimizers.RMSprop(0.1))
  history = model.fit(_NUMBERS, batch_size=_BATCH, shuffle=False, verbose=0)
  return model, history.history


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('kind', 'partitioner'),
  [
    (tfps.ParameterServerStrategy, _SHARDS),
    (tfps.BetweenGraphStrategy, None),
  ],
  ids=['coordinator, in shards', 'between graphs'],
)
def test_a_model_without_call_is_built_by_its_step(
  tfps_cluster, kind, partitioner
):
  strategy = kind(tfps_cluster.cluster, partitioner)
  model, history = _fit_gan(strategy.scope())
  alone, expected = _fit_gan()
  np.testing.assert_allclose(history['seen'], expected['seen'], rtol=1e-5)
  for mine, theirs in zip(
    model.get_weights(), alone.get_weights(), strict=True
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
  for optimizer in (model.discriminates, model.generates):
    slots = [v.value for v in optimizer.variables]
    shards = [s for v in slots for s in getattr(v, 'variables', [v])]
    assert all('/job:ps/' in shard.device for shard in shards)
