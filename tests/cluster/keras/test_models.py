"""Models of every kind train on workers as in a single process."""

import functools

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_RNG = np.random.default_rng(0)
_X = _RNG.random((64, 4, 4), dtype='f')
_IDS = _RNG.integers(0, 30, (64, 5))
_WORDS = tf.constant(_RNG.choice(['a', 'b', 'c'], (64, 1)))
_Y = _X.sum((1, 2))[:, None]
_ARGUMENTS = {'batch_size': 16, 'shuffle': False, 'verbose': 0}


_exhaustive = pytest.mark.exhaustive
_SHARDS = partitioners.FixedShards(2)
_WAYS = {
  'coordinator, whole': (tfps.ParameterServerStrategy, None),
  'coordinator, in shards': (tfps.ParameterServerStrategy, _SHARDS),
  # Whole it is Keras' own way, but for where variables are.
  'between graphs, in shards': (tfps.BetweenGraphStrategy, _SHARDS),
}


@pytest.fixture
def strategy(request, tfps_cluster, partitioner):
  return request.param(tfps_cluster.cluster, partitioner)


in_shards = pytest.mark.parametrize(
  ('strategy', 'partitioner'),
  [
    (tfps.ParameterServerStrategy, _SHARDS),
    pytest.param(tfps.BetweenGraphStrategy, _SHARDS, marks=_exhaustive),
  ],
  indirect=['strategy'],
  ids=['coordinator', 'between graphs'],
)


class Subclassed(keras.Model):
  def __init__(self) -> None:
    super().__init__()
    self.hidden = layers.Dense(4, 'relu')
    self.flatten = layers.Flatten()
    self.last = layers.Dense(1)

  def call(self, x):
    return self.last(self.flatten(self.hidden(x)))


class OwnStep(Subclassed):
  def train_step(self, data):
    x, y = data
    with tf.GradientTape() as tape:
      y_pred = self(x, training=True)
      loss = self.compute_loss(y=y, y_pred=y_pred)
    gradients = tape.gradient(loss, self.trainable_variables)
    self.optimizer.apply(gradients, self.trainable_variables)
    self._loss_tracker.update_state(loss)
    return self.compute_metrics(x, y, y_pred)


class Penalty(layers.Layer):
  def call(self, x):
    self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
    return x


def _sequential(*inner, **kwargs) -> keras.Model:
  return keras.Sequential(
    [layers.Input((4, 4)), *inner, layers.Flatten(), layers.Dense(1, **kwargs)]
  )


def _attention() -> keras.Model:
  inputs = layers.Input((4, 4))
  outputs = layers.MultiHeadAttention(2, 3)(inputs, inputs)
  return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(outputs)))


def _named_inputs() -> keras.Model:
  x = layers.Input((4, 4), name='x')
  ids = layers.Input((5,), dtype='int32', name='ids')
  table = layers.Embedding(30, 3)(ids)
  joined = layers.Concatenate()([layers.Flatten()(x), layers.Flatten()(table)])
  return keras.Model({'x': x, 'ids': ids}, layers.Dense(1)(joined))


def _normalized() -> keras.Model:
  normalization = layers.Normalization()
  normalization.adapt(_X)
  return _sequential(normalization)


def _words() -> keras.Model:
  lookup = layers.StringLookup(output_mode='one_hot')
  lookup.adapt(_WORDS)
  return keras.Sequential(
    [layers.Input((1,), dtype='string'), lookup, layers.Dense(1)]
  )


def _integers() -> keras.Model:
  lookup = layers.IntegerLookup(output_mode='multi_hot', max_tokens=31)
  lookup.adapt(_IDS)
  return keras.Sequential(
    [layers.Input((5,), dtype='int64'), lookup, layers.Dense(1)]
  )


MODELS = {
  'batch normalization': (
    lambda: _sequential(layers.BatchNormalization()),
    _X,
  ),
  'recurrent with dropout': (
    lambda: _sequential(layers.LSTM(3, dropout=0.2, recurrent_dropout=0.1)),
    _X,
  ),
  'convolution': (lambda: _sequential(layers.Conv1D(3, 2)), _X),
  'attention': (_attention, _X),
  'subclassed': (Subclassed, _X),
  'own train_step': (OwnStep, _X),
  'losses and constraints': (
    lambda: _sequential(
      Penalty(), kernel_regularizer='l2', kernel_constraint='non_neg'
    ),
    _X,
  ),
  'bfloat16': (
    lambda: _sequential(layers.Dense(4, dtype='mixed_bfloat16')),
    _X,
  ),
  'float16 with loss scaling': (
    lambda: _sequential(layers.Dense(4, dtype='mixed_float16')),
    _X,
  ),
  'normalization': (_normalized, _X),
  'words': (_words, _WORDS),
  'integers': (_integers, _IDS),
  'named inputs': (_named_inputs, {'x': _X, 'ids': _IDS}),
}
_OFTEN = (
  'batch normalization',
  'float16 with loss scaling',
)


@pytest.mark.parametrize(
  ('strategy', 'partitioner', 'kind'),
  [
    *turns.by_turns({kind: kind for kind in _OFTEN}, _WAYS),
    *(
      pytest.param(*way, kind, id=f'{name}-{kind}', marks=_exhaustive)
      for name, way in _WAYS.items()
      for kind in MODELS
      if kind not in _OFTEN
    ),
  ],
  indirect=['strategy'],
)
def test_a_model_trains_as_in_a_single_process(strategy, kind):
  build, x = MODELS[kind]
  with strategy.scope():
    model = _compile(build, kind)
  mine = model.fit(x, _Y, **_ARGUMENTS).history
  theirs, weights = _fit_alone(kind)
  for name in theirs:
    np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6)
  for weight, expected in zip(model.weights, weights, strict=True):
    if weight.dtype.startswith('float'):
      np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5, atol=1e-6)


@functools.cache
def _fit_alone(kind):
  build, x = MODELS[kind]
  model = _compile(build, kind)
  return model.fit(x, _Y, **_ARGUMENTS).history, model.get_weights()


def _compile(build, kind: str) -> keras.Model:
  keras.utils.set_random_seed(1)
  model = build()
  optimizer = keras.optimizers.SGD(0.01)
  if 'scaling' in kind:
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
  model.compile(optimizer, 'mse', metrics=['mae'], steps_per_execution=2)
  return model


@in_shards
def test_weights_are_in_shards_and_what_counts_is_not(strategy):
  with strategy.scope():
    model = _compile(MODELS['float16 with loss scaling'][0], 'scaling')
    numbers = keras.Variable([1, 2, 3], dtype='int32', trainable=False)
    dropout = layers.Dropout(0.5)
  model.fit(_X, _Y, verbose=0)
  values = {v.path: v.value for v in [*model.variables, numbers]}
  values.update((v.path, v.value) for v in model.optimizer.variables)
  values.update((v.path, v.value) for v in dropout.variables)
  shards = {
    path: len(getattr(value, 'variables', [value]))
    for path, value in values.items()
  }
  floats = {
    path
    for path, value in values.items()
    if value.dtype.is_floating and value.shape.rank and value.shape[0] > 1
  }
  assert floats
  assert shards == {path: 1 + (path in floats) for path in values}


@pytest.mark.exhaustive
@in_shards
def test_models_outside_the_scope_are_keras_own(strategy):
  with strategy.scope():
    _compile(MODELS['convolution'][0], '').fit(_X, _Y, verbose=0)
  alone = _compile(MODELS['convolution'][0], '')
  alone.fit(_X, _Y, verbose=0)
  assert alone.train_function.__module__.startswith('keras.src')
  mirrored = tf.distribute.MirroredStrategy(['CPU:0'])
  with mirrored.scope():
    model = _compile(MODELS['subclassed'][0], '')
  assert len(model.fit(_X, _Y, verbose=0).history['loss']) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_columns_of_an_input_may_be_looked_up(tfps_cluster, kind):
  """What Keras slices from an input has no static shape in a step."""
  ids = np.random.default_rng(0).integers(0, 50, (30, 3))
  dataset = tf.data.Dataset.from_tensor_slices((ids, ids.sum(1) * 1.0)).batch(8)

  def build():
    keras.utils.set_random_seed(1)
    inputs = keras.Input([3], dtype='int64')
    rows = [keras.layers.Embedding(50, 4)(inputs[:, i]) for i in range(3)]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(rows))
    model = keras.Model(inputs, outputs)
    model.compile('sgd', 'mse', steps_per_execution=2)
    return model

  with kind(tfps_cluster.cluster).scope():
    model = build()
  alone = build()
  for each in (alone, model):
    each.fit(dataset, verbose=0)
  for mine, theirs in zip(
    model.get_weights(), alone.get_weights(), strict=True
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
