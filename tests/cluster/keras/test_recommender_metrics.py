"""Metrics of recommenders are those of a single process."""

import functools
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
import tfps.keras
from tfps.keras import metrics

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_N = 170
_BATCH = 16
_RNG = np.random.default_rng(0)
_X = _RNG.integers(4, size=[_N, 2]).astype('f')  # few values, so there are ties
_CLICKS = (_X[:, 0] + _RNG.random(_N) * 4 > 4).astype('i8')
_USERS = _RNG.integers(40, size=_N)
_WEIGHTS = _RNG.random(_N).astype('f') + 0.5
_RELEVANCES = _RNG.integers(3, size=[_N, 5]).astype('f')

_STRATEGIES = [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
_WAYS = {kind.__name__: (kind,) for kind in _STRATEGIES}


_PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'keras.md'
_EXAMPLE = re.compile(
  r'## Recommender metrics\n.*?```python\n(.*?)```', re.DOTALL
)


def _clicks_loss(y_true, y_pred):
  return keras.losses.binary_crossentropy(y_true[:, :1], y_pred)


def _make(name):
  return {
    'sums': lambda: [metrics.NormalizedEntropy(), metrics.Calibration()],
    'ranks': lambda: [metrics.ExactAUC(200)],
    'groups': lambda: [
      metrics.GroupedAUC(200),
      metrics.GroupedAUC(200, weight_by='positives', name='by_positives'),
    ],
    'candidates': lambda: [metrics.RecallAtK(2), metrics.NDCGAtK(3)],
  }[name]()


_LABELS = {
  'sums': _CLICKS,
  'ranks': _CLICKS,
  'groups': np.stack([_CLICKS, _USERS], axis=1),
  'candidates': _RELEVANCES,
}
_KINDS = sorted(_LABELS)


def _build(kind):
  keras.utils.set_random_seed(3)
  outputs = 5 if kind == 'candidates' else 1
  model = keras.Sequential(
    [keras.layers.Input((2,)), keras.layers.Dense(outputs, 'sigmoid')]
  )
  model.compile(
    keras.optimizers.SGD(0.1),
    _clicks_loss if kind == 'groups' else 'mse',
    metrics=[],
    weighted_metrics=_make(kind),
    steps_per_execution=2,
  )
  return model


def _evaluate_twice(model, kind):
  return [
    model.evaluate(
      _X,
      _LABELS[kind],
      sample_weight=_WEIGHTS,
      batch_size=_BATCH,
      verbose=0,
      return_dict=True,
    )
    for _ in range(2)
  ]


@functools.cache
def _evaluate_alone(kind):
  return _evaluate_twice(_build(kind), kind)


def _expected(kind, model):
  """The values of fresh metrics on all predictions at once."""
  predictions = model.predict(_X, batch_size=_BATCH, verbose=0)
  found = {}
  for metric in _make(kind):
    metric.update_state(_LABELS[kind], predictions, _WEIGHTS)
    found[metric.name] = float(metric.result())
  return found


@pytest.mark.parametrize(
  ('make_strategy', 'kind'),
  turns.by_turns(
    {kind: kind for kind in _KINDS},
    _WAYS,
    rarely=['sums', 'candidates', 'groups'],
  ),
)
def test_evaluate_gives_what_a_single_process_gives(
  tfps_cluster, make_strategy, kind
):
  strategy = make_strategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(kind)
  found = _evaluate_twice(model, kind)
  assert found == _evaluate_alone(kind)
  for name, value in _expected(kind, model).items():
    assert value > 0
    assert found[0][name] == pytest.approx(value, rel=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize('kind', _KINDS)
def test_fit_counts_each_example_once(tfps_cluster, kind):
  """Without updates, each batch has the same model whatever worker has it."""
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(kind)
    model.optimizer.learning_rate = 0.0
  history = model.fit(
    _X,
    _LABELS[kind],
    sample_weight=_WEIGHTS,
    batch_size=_BATCH,
    epochs=2,
    verbose=0,
  ).history
  for name, value in _expected(kind, model).items():
    assert history[name] == pytest.approx([value, value], rel=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize('kind', _KINDS)
def test_fit_between_graphs_is_as_in_a_single_process(tfps_cluster, kind):
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(kind)
  assert _fit(model, kind) == _fit_alone(kind)


def _fit(model, kind):
  return model.fit(
    _X,
    _LABELS[kind],
    batch_size=_BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
  ).history


@functools.cache
def _fit_alone(kind):
  return _fit(_build(kind), kind)


@pytest.mark.exhaustive
def test_too_many_examples_fail_the_step_and_say_what_to_do(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse', metrics=[metrics.ExactAUC(_N - 1)])
  with pytest.raises(
    tf.errors.OpError, match=f'max_examples is {_N - 1}. Give as many'
  ):
    model.evaluate(_X, _CLICKS, batch_size=_BATCH, verbose=0)
  _, found = model.evaluate(_X[1:], _CLICKS[1:], batch_size=_BATCH, verbose=0)
  exact = metrics.ExactAUC(_N)
  exact.update_state(_CLICKS[1:], model.predict(_X[1:], verbose=0))
  assert found == pytest.approx(float(exact.result()))


@pytest.mark.parametrize(
  'make_strategy', turns.rarely(_STRATEGIES, but=[tfps.BetweenGraphStrategy])
)
def test_a_callback_computes_them_from_predictions(tfps_cluster, make_strategy):
  strategy = make_strategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build('sums')
  seen = []
  history = model.fit(
    _X,
    _CLICKS,
    batch_size=_BATCH,
    epochs=2,
    verbose=0,
    callbacks=[
      tfps.keras.EvaluatePredictions(
        _X,
        _CLICKS,
        [metrics.ExactAUC(_N), metrics.GroupedAUC(_N)],
        groups=_USERS,
        batch_size=_BATCH,
      ),
      keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs['val_exact_auc'])
      ),
    ],
  ).history
  predictions = model.predict(_X, batch_size=_BATCH, verbose=0)
  exact, grouped = metrics.ExactAUC(_N), metrics.GroupedAUC(_N)
  exact.update_state(_CLICKS, predictions)
  grouped.update_state(_CLICKS, predictions, groups=_USERS)
  assert seen == history['val_exact_auc']
  assert history['val_exact_auc'][-1] == float(exact.result())
  assert history['val_grouped_auc'][-1] == float(grouped.result())


@pytest.mark.exhaustive
def test_the_example_of_the_page_runs(tfps_cluster, capsys):
  (example,) = _EXAMPLE.findall(_PAGE.read_text())
  names = {
    'keras': keras,
    'strategy': tfps.ParameterServerStrategy(tfps_cluster.cluster),
    'x': _X,
    'clicks': _CLICKS,
    'held_out_x': _X,
    'held_out_clicks': _CLICKS,
    'held_out_users': _USERS,
  }
  exec(example, names)
  logged = names['history'].history
  assert str(logged['val_grouped_auc']) in capsys.readouterr().out
  exact = metrics.ExactAUC()
  exact.update_state(_CLICKS, names['model'].predict(_X, verbose=0))
  assert logged['val_exact_auc'][-1] == float(exact.result())
  positive = sum(_CLICKS) / _N
  entropy = -positive * np.log(positive) - (1 - positive) * np.log(1 - positive)
  expected = [loss / entropy for loss in logged['loss']]
  assert logged['normalized_entropy'] == pytest.approx(expected, rel=0.05)
