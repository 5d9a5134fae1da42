"""Metrics are those of a single process, whoever gathers them."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_RNG = np.random.default_rng(0)
_X = _RNG.random((120, 3), 'f')
_TRUTH = (_X.sum(1) > 1.4).astype('f')[:, None]


@pytest.fixture
def strategy(tfps_cluster):
  # Metrics stay with the chief, however variables are cut.
  return tfps.ParameterServerStrategy(tfps_cluster.cluster)


class Largest(keras.metrics.Metric):
  """The largest value, which does not add up."""

  def __init__(self) -> None:
    super().__init__(name='largest')
    self.value = self.add_weight(shape=(), initializer='zeros', name='value')

  def update_state(self, y_true, y_pred, sample_weight=None):
    self.value.assign(
      keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_pred)))
    )

  def result(self):
    return self.value


class Batches(keras.metrics.Metric):
  """Counts batches backwards, in place."""

  def __init__(self) -> None:
    super().__init__(name='batches')
    self.count = self.add_weight(shape=(), initializer='zeros', name='count')

  def update_state(self, y_true, y_pred, sample_weight=None):
    self.count.assign_sub(1)

  def result(self):
    return self.count


class Running(keras.metrics.Metric):
  """A mean over batches, which adds by what it has gathered."""

  def __init__(self) -> None:
    super().__init__(name='running')
    self.count, self.mean = (
      self.add_weight(shape=(), initializer='zeros', name=name)
      for name in ('count', 'mean')
    )

  def update_state(self, y_true, y_pred, sample_weight=None):
    self.count.assign_add(1)
    value = keras.ops.mean(y_pred)
    self.mean.assign_add((value - self.mean) / self.count)

  def result(self):
    return self.mean


class Long(keras.metrics.Metric):
  """Has numbers that no double holds: a sum, and what has been seen last."""

  def __init__(self) -> None:
    super().__init__(name='long')
    self.sum, self.last = (
      self.add_weight(shape=(2,), initializer='zeros', dtype='int64', name=name)
      for name in ('sum', 'last')
    )

  def update_state(self, y_true, y_pred, sample_weight=None):
    value = tf.cast(tf.reduce_max(y_true), tf.int64)
    self.sum.assign_add(tf.stack([2**60 + value, -value]))
    self.last.assign(tf.stack([2**53 + value, -(2**61) - value]))

  def result(self):
    return keras.ops.sum(self.sum)


_metrics = keras.metrics

# By what the model's outputs are.
METRICS = {
  'probabilities': lambda: [
    _metrics.AUC(),
    _metrics.Accuracy(),
    _metrics.BinaryAccuracy(),
    _metrics.BinaryCrossentropy(),
    _metrics.BinaryIoU(),
    _metrics.F1Score(threshold=0.5),
    _metrics.FBetaScore(threshold=0.5),
    _metrics.FalseNegatives(),
    _metrics.FalsePositives(),
    _metrics.Hinge(),
    _metrics.Precision(),
    _metrics.PrecisionAtRecall(0.5),
    _metrics.Recall(),
    _metrics.RecallAtPrecision(0.5),
    _metrics.SensitivityAtSpecificity(0.5),
    _metrics.SpecificityAtSensitivity(0.5),
    _metrics.SquaredHinge(),
    _metrics.TrueNegatives(),
    _metrics.TruePositives(),
  ],
  'numbers': lambda: [
    _metrics.ConcordanceCorrelation(),
    _metrics.CosineSimilarity(),
    _metrics.LogCoshError(),
    _metrics.MeanAbsoluteError(),
    _metrics.MeanAbsolutePercentageError(),
    _metrics.MeanMetricWrapper(_difference),
    _metrics.MeanSquaredError(),
    _metrics.MeanSquaredLogarithmicError(),
    _metrics.PearsonCorrelation(),
    _metrics.Poisson(),
    _metrics.R2Score(),
    _metrics.RootMeanSquaredError(),
  ],
  'classes': lambda: [
    _metrics.CategoricalAccuracy(),
    _metrics.CategoricalCrossentropy(),
    _metrics.CategoricalHinge(),
    _metrics.KLDivergence(),
    _metrics.OneHotIoU(3, [0, 2]),
    _metrics.OneHotMeanIoU(3),
    _metrics.TopKCategoricalAccuracy(2),
  ],
  'class numbers': lambda: [
    _metrics.IoU(3, [0, 2], sparse_y_pred=False),
    _metrics.MeanIoU(3, sparse_y_pred=False),
    _metrics.SparseCategoricalAccuracy(),
    _metrics.SparseCategoricalCrossentropy(),
    _metrics.SparseTopKCategoricalAccuracy(2),
  ],
  'own': lambda: [Largest(), Batches(), Running()],
}
_CLASS_NUMBERS = _RNG.integers(3, size=[120, 1]).astype('f')
_LABELS = {
  'probabilities': _TRUTH,
  'numbers': _X @ _RNG.random((3, 2), 'f'),
  'classes': keras.utils.to_categorical(_CLASS_NUMBERS, 3),
  'class numbers': _CLASS_NUMBERS,
  'own': _TRUTH,
}
_OUTPUTS = {
  'numbers': lambda: keras.layers.Dense(2),
  'classes': lambda: keras.layers.Dense(3, 'softmax'),
  'class numbers': lambda: keras.layers.Dense(3, 'softmax'),
}


def _difference(y_true, y_pred):
  return y_pred - y_true


def _build(kind: str) -> keras.Model:
  keras.utils.set_random_seed(3)
  outputs = _OUTPUTS.get(kind, lambda: keras.layers.Dense(1, 'sigmoid'))
  model = keras.Sequential([keras.layers.Input((3,)), outputs()])
  is_sparse = kind == 'class numbers'
  loss = 'sparse_categorical_crossentropy' if is_sparse else 'mse'
  model.compile('sgd', loss, metrics=METRICS[kind](), steps_per_execution=2)
  return model


def test_all_of_keras_metrics_are_here():
  """But `Mean` and `Sum`, which do not compare outputs with labels."""
  metrics = [m for kind in METRICS if kind != 'own' for m in METRICS[kind]()]
  names = {
    name
    for name, value in vars(keras.metrics).items()
    if isinstance(value, type) and issubclass(value, keras.metrics.Metric)
  }
  assert {type(m).__name__ for m in metrics} == names - {
    'Mean',
    'Metric',
    'Sum',
  }


@pytest.mark.parametrize('kind', turns.rarely(list(METRICS), but=['own']))
def test_evaluate_gives_the_metrics_of_a_single_process(strategy, kind):
  with strategy.scope():
    model = _build(kind)
  for mine, theirs in zip(
    _evaluate_twice(model, kind), _evaluate_alone(kind), strict=True
  ):
    for ours, expected in zip(mine.values(), theirs.values(), strict=True):
      np.testing.assert_array_equal(ours, expected)  # some are no number


def test_metrics_and_random_layers_may_be_made_outside_of_the_scope(strategy):
  random = keras.layers.GaussianNoise(1.0)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((3,)), random])
  model.compile('sgd', 'mse', metrics=[Batches()])
  arguments = {'batch_size': 2, 'verbose': 0, 'epochs': 2}
  history = model.fit(_X, _X, **arguments).history
  assert history['batches'] == [-60, -60]
  assert random.seed_generator.state.numpy()[1] == 120


def test_long_integers_are_kept(strategy):
  with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile('sgd', 'mse', metrics=[long := Long()])
  numbers = np.arange(1, 6)[:, None]
  model.evaluate(np.zeros([5, 3]), numbers, batch_size=1, verbose=0)
  np.testing.assert_array_equal(long.sum, [5 * 2**60 + 15, -15])
  np.testing.assert_array_equal(long.last, [2**53 + 5, -(2**61) - 5])


def _evaluate_twice(model, kind):
  arguments = {'batch_size': 10, 'verbose': 0, 'return_dict': True}
  return [model.evaluate(_X, _LABELS[kind], **arguments) for _ in range(2)]


@functools.cache
def _evaluate_alone(kind):
  return _evaluate_twice(_build(kind), kind)


@pytest.mark.exhaustive
def test_metrics_that_do_not_add_up_are_those_of_all_batches(strategy):
  with strategy.scope():
    model = _build('own')
  logs = model.fit(_X, _TRUTH, batch_size=5, epochs=2, verbose=0).history
  assert logs['batches'] == [-24.0, -24.0]
  largest = np.abs(model.predict(_X, verbose=0)).max()
  assert 0.5 * largest < logs['largest'][1] < 2 * largest


class OwnSteps(keras.Model):
  """A model with steps and logs of its own."""

  def __init__(self) -> None:
    super().__init__()
    self.dense = keras.layers.Dense(1)
    self.tracker = keras.metrics.Mean(name='error')

  @property
  def metrics(self):
    return [self.tracker]

  def call(self, x):
    return self.dense(x)

  def train_step(self, data):
    x, y = data
    self.tracker.update_state(keras.ops.mean(keras.ops.abs(self(x) - y)))
    self.dense.bias.assign_add([1.0])
    return {'error': self.tracker.result(), 'batch': keras.ops.shape(x)[0]}


def test_steps_of_ones_own_may_log_what_they_like(strategy):
  with strategy.scope():
    model = OwnSteps()
    model.compile(steps_per_execution=4)
  history = model.fit(_X, _TRUTH, batch_size=10, verbose=0).history
  assert history['batch'] == [10]
  assert history['error'][0] > 1
  assert model.dense.bias.numpy() == [12.0]
