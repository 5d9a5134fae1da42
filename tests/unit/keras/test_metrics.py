"""Metrics of recommenders have the values of their definitions."""

import math

import hypothesis
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps.keras
from tfps.keras import metrics

_RNG = np.random.default_rng(0)
_N = 60
_LABELS = _RNG.integers(2, size=_N)
_SCORES = _RNG.integers(1, 8, size=_N).astype('f') / 8  # has ties
_WEIGHTS = _RNG.integers(4, size=_N).astype('f')
_GROUPS = _RNG.integers(12, size=_N)
_RELEVANCES = np.append(
  _RNG.integers(3, size=[20, 6]), np.zeros([2, 6], int), axis=0
)
_RANKINGS = _RNG.permuted(np.tile(np.arange(6, dtype='f'), [22, 1]), axis=1)

ALL = {
  'normalized entropy': lambda: metrics.NormalizedEntropy(from_logits=True),
  'calibration': lambda: metrics.Calibration(from_logits=True),
  'exact AUC': lambda: metrics.ExactAUC(70),
  'grouped AUC': lambda: metrics.GroupedAUC(70, weight_by='positives'),
  'recall': lambda: metrics.RecallAtK(2),
  'NDCG': lambda: metrics.NDCGAtK(4, name='own', dtype='float64'),
}
_OF_LISTS = ('recall', 'NDCG')
_OF_CLICKS = tuple(name for name in ALL if name not in _OF_LISTS)
all_metrics = pytest.mark.parametrize('name', ALL)


def _data(name):
  if name in _OF_LISTS:
    return _RELEVANCES, _RANKINGS, _WEIGHTS[:22]
  labels = _LABELS
  if name == 'grouped AUC':
    labels = np.stack([_LABELS, _GROUPS], axis=1)
  return labels, _SCORES, _WEIGHTS


def _value(metric, *args, **kwargs):
  metric.update_state(*args, **kwargs)
  return float(metric.result())


# Definitions, one example or pair at a time.


def _auc(labels, scores, weights):
  """The share of won pairs of a positive and a negative example."""
  won = pairs = 0.0
  for label, score, weight in zip(labels, scores, weights, strict=True):
    for other, below, factor in zip(labels, scores, weights, strict=True):
      if label == 1 and other == 0:
        pairs += weight * factor
        won += weight * factor * ((score > below) + (score == below) / 2)
  return won / pairs if pairs else math.nan


def _gauc(labels, scores, weights, groups, *, by_positives=False):
  total = sizes = 0.0
  for group in set(groups.tolist()):
    mine = groups == group
    area = _auc(labels[mine], scores[mine], weights[mine])
    counted = mine & (labels == 1) if by_positives else mine
    if not math.isnan(area):
      total += area * weights[counted].sum()
      sizes += weights[counted].sum()
  return total / sizes if sizes else math.nan


def _log_loss(labels, scores, weights):
  losses = -np.log(np.where(labels == 1, scores, 1 - scores).astype(float))
  return np.average(losses, weights=weights)


def _normalized_entropy(labels, scores, weights):
  average = np.average(labels, weights=weights)
  entropy = _log_loss(labels, np.full(len(labels), average), weights)
  return _log_loss(labels, scores, weights) / entropy


def _best(scores, k):
  return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def _recall(relevances, scores, k):
  found = sum(relevances[i] > 0 for i in _best(scores, k))
  return found / (relevances > 0).sum()


def _ndcg(relevances, scores, k):
  def gain(order):
    return sum(
      (2.0 ** relevances[i] - 1) / math.log2(place + 2)
      for place, i in enumerate(order)
    )

  return gain(_best(scores, k)) / gain(_best(relevances, k))


def _mean(of_row, weights, k):
  values, counted = [], []
  for relevances, scores, weight in zip(
    _RELEVANCES, _RANKINGS, weights, strict=True
  ):
    if relevances.any():
      values.append(of_row(relevances, scores, k))
      counted.append(weight)
  return np.average(values, weights=counted)


_EVEN = np.ones(_N, 'f')


@pytest.mark.parametrize('weights', [None, _WEIGHTS], ids=['even', 'weighted'])
def test_clicks(weights):
  factors = _EVEN if weights is None else weights
  entropy = metrics.NormalizedEntropy()
  expected = _normalized_entropy(_LABELS, _SCORES, factors)
  assert _value(entropy, _LABELS, _SCORES, weights) == pytest.approx(
    expected, rel=1e-5
  )
  calibration = metrics.Calibration()
  expected = (factors * _SCORES).sum() / (factors * _LABELS).sum()
  assert _value(calibration, _LABELS, _SCORES, weights) == pytest.approx(
    expected, rel=1e-6
  )


@pytest.mark.parametrize(
  'kind', [metrics.NormalizedEntropy, metrics.Calibration]
)
def test_logits_count_as_their_probabilities(kind):
  logits = np.log(_SCORES / (1 - _SCORES))
  found = _value(kind(from_logits=True), _LABELS, logits)
  assert found == pytest.approx(_value(kind(), _LABELS, _SCORES), rel=1e-5)


def test_the_average_label_has_a_normalized_entropy_of_one():
  average = np.full(_N, _LABELS.mean(), 'f')
  found = _value(metrics.NormalizedEntropy(), _LABELS, average)
  assert found == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize('weights', [None, _WEIGHTS], ids=['even', 'weighted'])
def test_areas(weights):
  factors = _EVEN if weights is None else weights
  found = _value(metrics.ExactAUC(_N), _LABELS, _SCORES, weights)
  assert found == np.float32(_auc(_LABELS, _SCORES, factors))
  for weight_by in ('examples', 'positives'):
    metric = metrics.GroupedAUC(_N, weight_by=weight_by)
    found = _value(metric, _LABELS, _SCORES, weights, groups=_GROUPS)
    assert found == pytest.approx(
      _gauc(
        _LABELS,
        _SCORES,
        factors,
        _GROUPS,
        by_positives=weight_by == 'positives',
      ),
      rel=1e-6,
    )


_EXAMPLES = st.lists(
  st.tuples(
    st.integers(0, 1),
    st.sampled_from([-1.5, 0.0, 0.25, 0.25000003, 2.0, 1e30]),
    st.integers(0, 3),
    st.sampled_from([0, 1, 2**24 + 1, 2**40, 2**40 + 1]),
  ),
  min_size=1,
  max_size=20,
)


@pytest.mark.exhaustive
@hypothesis.given(_EXAMPLES, st.integers(1, 20))
@hypothesis.settings(max_examples=60, deadline=None)
def test_areas_of_any_examples_in_two_batches(examples, cut):
  labels, scores, weights, groups = map(np.array, zip(*examples, strict=True))
  scores = scores.astype('f')
  exact, grouped = metrics.ExactAUC(20), metrics.GroupedAUC(20)
  for part in (slice(cut), slice(cut, None)):
    exact.update_state(labels[part], scores[part], weights[part])
    grouped.update_state(
      np.stack([labels, groups], axis=1)[part], scores[part], weights[part]
    )
  np.testing.assert_equal(
    exact.result().numpy(), np.float32(_auc(labels, scores, weights))
  )
  np.testing.assert_allclose(
    grouped.result().numpy(),
    _gauc(labels, scores, weights, groups),
    rtol=1e-6,
  )


def test_near_predictions_are_not_equal():
  """Keras' AUC has both in one bucket between two thresholds."""
  low = np.float32(0.5001)
  high = np.nextafter(low, np.float32(1))
  assert _value(metrics.ExactAUC(4), [0, 1], [low, high]) == 1
  assert _value(keras.metrics.AUC(), [0, 1], [low, high]) == 0.5


def test_groups_of_one_label_are_left_out():
  labels, scores = [1, 0, 1, 1, 0], [0.7, 0.3, 0.1, 0.2, 0.9]
  groups = [4, 4, 9, 9, 2]
  assert _value(metrics.GroupedAUC(5), labels, scores, groups=groups) == 1
  only_of_one = metrics.GroupedAUC(5)
  assert math.isnan(
    _value(only_of_one, labels[2:], scores[2:], groups=[9, 9, 2])
  )


@pytest.mark.parametrize('weights', [None, _WEIGHTS[:22]], ids=['even', 'own'])
@pytest.mark.parametrize('k', [1, 3, 6, 9])
def test_rankings(k, weights):
  factors = np.ones(22) if weights is None else weights
  for kind, of_row in (
    (metrics.RecallAtK, _recall),
    (metrics.NDCGAtK, _ndcg),
  ):
    found = _value(kind(k), _RELEVANCES, _RANKINGS, weights)
    assert found == pytest.approx(_mean(of_row, factors, k), rel=1e-5)


def test_equal_scores_keep_the_order_of_candidates():
  scores = [[0.5, 0.5, 0.5, -math.inf]]
  assert _value(metrics.RecallAtK(1), [[1, 0, 0, 0]], scores) == 1
  assert _value(metrics.RecallAtK(2), [[0, 0, 1, 0]], scores) == 0
  assert _value(metrics.NDCGAtK(2), [[0, 1, 0, 0]], scores) == pytest.approx(
    1 / math.log2(3)
  )


@all_metrics
def test_batches_give_the_value_of_all_and_reset_begins_anew(name):
  arrays = _data(name)
  expected = _value(ALL[name](), *arrays)
  metric = ALL[name]()
  for start in range(0, len(arrays[0]), 7):
    metric.update_state(*(array[start : start + 7] for array in arrays))
  assert float(metric.result()) == pytest.approx(expected, rel=1e-5)
  metric.reset_state()
  assert math.isnan(metric.result())
  assert _value(metric, *arrays) == expected


@all_metrics
def test_without_examples_it_is_undefined(name):
  assert math.isnan(ALL[name]().result())


@all_metrics
def test_it_is_made_anew_from_its_config(name):
  metric = ALL[name]()
  config = keras.saving.serialize_keras_object(metric)
  assert config['registered_name'] == f'tfps>{type(metric).__name__}'
  copy = keras.saving.deserialize_keras_object(config)
  assert copy.get_config() == metric.get_config()
  assert _value(copy, *_data(name)) == _value(metric, *_data(name))
  assert copy.result().dtype == metric.dtype


@pytest.mark.parametrize('name', _OF_CLICKS)
def test_columns_are_vectors(name):
  labels, scores, weights = _data(name)
  expected = _value(ALL[name](), labels, scores, weights)
  found = _value(ALL[name](), labels, scores[:, None], weights[:, None])
  assert found == expected


@all_metrics
@pytest.mark.parametrize('jit_compile', [False, True])
def test_graphs_give_the_same(name, jit_compile):
  metric = ALL[name]()
  expected = _value(ALL[name](), *_data(name))

  @tf.function(jit_compile=jit_compile)
  def step(*arrays):
    metric.update_state(*arrays)
    return metric.result()

  found = float(step(*map(tf.constant, _data(name))))
  assert found == pytest.approx(expected, rel=1e-5)


_TWO = [0, 1]
_WRONG = {
  'k is 0': lambda: metrics.RecallAtK(0),
  'k is 1.5': lambda: metrics.NDCGAtK(1.5),
  'k is True': lambda: metrics.NDCGAtK(True),
  'max_examples is -3': lambda: metrics.ExactAUC(-3),
  "weight_by is 'users'": lambda: metrics.GroupedAUC(weight_by='users'),
  r'\(2,\) and y_pred the shape \(3,\)': lambda: _value(
    metrics.NormalizedEntropy(), _TWO, [0.1, 0.2, 0.3]
  ),
  r'sample_weight has the shape \(3,\)': lambda: _value(
    metrics.Calibration(), _TWO, [0.1, 0.2], [1, 2, 3]
  ),
  r'y_true has the shape \(2,\).* as \[batch, candidates\]': lambda: _value(
    metrics.RecallAtK(1), _TWO, [0.1, 0.2]
  ),
  r'y_true has the shape \(2, 3\)': lambda: _value(
    metrics.GroupedAUC(), [[0, 1, 2], [1, 2, 2]], [0.1, 0.2]
  ),
  r'y_true has the shape \(2,\). Give the columns': lambda: _value(
    metrics.GroupedAUC(), _TWO, [0.1, 0.2]
  ),
  r'groups has the shape \(1,\)': lambda: _value(
    metrics.GroupedAUC(), _TWO, [0.1, 0.2], groups=[1]
  ),
  'Number them from 0. A wrong one is: -5': lambda: _value(
    metrics.GroupedAUC(), _TWO, [0.1, 0.2], groups=[1, -5]
  ),
  'A wrong one is: 1.5': lambda: _value(
    metrics.GroupedAUC(), _TWO, [0.1, 0.2], groups=[1.0, 1.5]
  ),
  'as int64. The largest group is: 33554432': lambda: _value(
    metrics.GroupedAUC(), [[0.0, 1.0], [1.0, 2.0**25]], [0.1, 0.2]
  ),
  'metrics is empty': lambda: tfps.keras.EvaluatePredictions(_SCORES, _TWO, []),
  'max_examples is 3.* so far: 4': lambda: [
    _value(metric, _TWO, [0.1, 0.2]) for metric in [metrics.ExactAUC(3)] * 2
  ],
}


@pytest.mark.parametrize('complaint', _WRONG)
def test_wrong_arguments_are_named(complaint):
  with pytest.raises(ValueError, match=complaint):
    _WRONG[complaint]()


def test_too_many_examples_have_no_area():
  """XLA leaves out the check that raises elsewhere."""
  metric = metrics.ExactAUC(3)
  step = tf.function(metric, jit_compile=True)
  assert step(tf.constant(_TWO), tf.constant([0.1, 0.2])) == 1
  assert math.isnan(step(tf.constant(_TWO), tf.constant([0.1, 0.2])))
  assert math.isnan(step(tf.constant(_TWO), tf.constant([0.1, 0.2])))
  metric.reset_state()
  assert step(tf.constant(_TWO), tf.constant([0.1, 0.2])) == 1


def test_negative_groups_fail_the_step_of_a_graph():
  step = tf.function(metrics.GroupedAUC(3).update_state)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'groups.*\[-1\]'):
    step(tf.constant([[0, 1], [1, -1]]), tf.constant([0.1, 0.2]))


def test_a_prediction_that_is_no_number_has_no_area():
  assert math.isnan(_value(metrics.ExactAUC(3), _TWO, [0.1, math.nan]))
