"""Metrics are those of a single process, whoever gathers them."""

import keras
import numpy as np
import pytest

import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_RNG = np.random.default_rng(0)
_X = _RNG.random((120, 3), 'f')
_LABELS = (_X.sum(1) > 1.4).astype('f')[:, None]


@pytest.fixture
def strategy(tfps_cluster):
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


METRICS = {
  'binary': lambda: [
    keras.metrics.BinaryAccuracy(),
    keras.metrics.AUC(),
    keras.metrics.Precision(),
    keras.metrics.Recall(),
    keras.metrics.TruePositives(),
    keras.metrics.SensitivityAtSpecificity(0.5),
    keras.metrics.F1Score(threshold=0.5),
    keras.metrics.BinaryIoU(),
    keras.metrics.Hinge(),
    keras.metrics.BinaryCrossentropy(),
  ],
  'regression': lambda: [
    keras.metrics.R2Score(),
    keras.metrics.MeanSquaredError(),
    keras.metrics.RootMeanSquaredError(),
    keras.metrics.MeanAbsolutePercentageError(),
    keras.metrics.CosineSimilarity(),
    keras.metrics.LogCoshError(),
  ],
  'own': lambda: [Largest(), Batches()],
}


def _build(kind: str) -> keras.Model:
  keras.utils.set_random_seed(3)
  model = keras.Sequential(
    [keras.layers.Input((3,)), keras.layers.Dense(1, 'sigmoid')]
  )
  model.compile('sgd', 'mse', metrics=METRICS[kind](), steps_per_execution=4)
  return model


@pytest.mark.parametrize('kind', METRICS)
def test_evaluate_gives_the_metrics_of_a_single_process(strategy, kind):
  with strategy.scope():
    model = _build(kind)
  alone = _build(kind)
  arguments = {'batch_size': 7, 'verbose': 0, 'return_dict': True}
  for _ in range(2):
    mine = model.evaluate(_X, _LABELS, **arguments)
    theirs = alone.evaluate(_X, _LABELS, **arguments)
    assert list(mine.values()) == list(theirs.values())


def test_metrics_that_do_not_add_up_are_those_of_all_batches(strategy):
  with strategy.scope():
    model = _build('own')
  logs = model.fit(_X, _LABELS, batch_size=5, epochs=2, verbose=0).history
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
  history = model.fit(_X, _LABELS, batch_size=10, verbose=0).history
  assert history['batch'] == [10]
  assert history['error'][0] > 1
  assert model.dense.bias.numpy() == [12.0]
