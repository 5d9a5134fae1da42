"""Features share a table of embeddings, in which each has rows of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.keras.embeddings import keys as keys_lib

_IDS = np.array([[7, 7, 8], [7, 9, 7]])
_NUMBER = 3


def _layer(**options):
  return tfps.embeddings.Embedding(2, 'normal', num_features=_NUMBER, **options)


def _rows_of(layer, ids, feature):
  """The rows of ids of one feature, as its documentation says."""
  keys = np.asarray(ids, np.int64) * _NUMBER + feature
  return layer.table.lookup(keys, training=False).numpy()


def test_an_id_has_a_row_for_each_feature():
  layer = _layer()
  rows = layer(_IDS, training=True).numpy()
  assert rows.shape == (2, 3, 2)
  assert layer.table.num_keys() == 5  # of 3 ids
  for feature in range(_NUMBER):
    np.testing.assert_array_equal(
      rows[:, feature], _rows_of(layer, _IDS[:, feature], feature)
    )


@pytest.mark.parametrize('number', [1, 2, 26, 64, 127])
def test_ids_of_any_value_have_different_keys(number):
  random = np.random.default_rng(number)
  some = random.integers(-(2**63), 2**63 - 1, 500)
  high = np.arange(-128, 127) << 56
  ids = np.unique(np.concatenate([some, high, np.arange(500)]))
  columns = np.repeat(ids[:, np.newaxis], number, axis=1)
  keys = keys_lib.of_features(tf.constant(columns), number, 'layer').numpy()
  assert len(np.unique(keys)) == keys.size


def test_strings_and_small_integers_are_ids():
  layer = _layer()
  assert layer(tf.constant([['a', 'a', 'b']]), training=True).shape == [1, 3, 2]
  assert layer.table.num_keys() == 3
  rows = layer(tf.constant(_IDS, tf.int8), training=True)
  np.testing.assert_array_equal(rows, layer(_IDS))


@pytest.mark.parametrize('combiner', ['sum', 'mean', 'sqrtn'])
@pytest.mark.parametrize('form', ['dense', 'ragged', 'ragged of a ragged one'])
@pytest.mark.parametrize('is_weighted', [False, True])
def test_several_ids_of_a_feature_are_combined(combiner, form, is_weighted):
  ids = np.array([[[7, 8], [7, 0], [0, 0]], [[9, 0], [3, 7], [7, 0]]])
  weights = np.arange(1, 13, dtype='f').reshape(ids.shape)
  given = ids != 0
  layer = _layer(combiner=combiner, mask_zero=form == 'dense')
  inputs, factors = tf.constant(ids), tf.constant(weights)
  if form != 'dense':
    inputs = tf.RaggedTensor.from_tensor(ids, padding=0, ragged_rank=2)
    factors = inputs.with_flat_values(weights[given])
  if form == 'ragged of a ragged one':
    outer = inputs.row_splits
    inputs = tf.RaggedTensor.from_row_splits(inputs.values, outer)
    factors = tf.RaggedTensor.from_row_splits(factors.values, outer)
  own = (factors,) if is_weighted else ()
  actual = layer(inputs, *own, training=True)
  assert actual.shape == (2, 3, 2)
  factors = np.where(given, weights if is_weighted else 1.0, 0.0)
  for feature in range(_NUMBER):
    rows = _rows_of(layer, ids[:, feature], feature)
    own = factors[:, feature, :, np.newaxis]
    below = own.sum(1) if combiner == 'mean' else np.sqrt((own**2).sum(1))
    below = np.ones_like(below) if combiner == 'sum' else below
    expected = (rows * own).sum(1) / np.where(below, below, 1.0)
    np.testing.assert_allclose(actual[:, feature], expected, rtol=1e-5)


def test_features_of_sparse_ids_are_combined():
  layer = _layer(combiner='sum')
  actual = layer(tf.sparse.from_dense(_IDS * [1, 0, 1]), training=True)
  expected = [_rows_of(layer, _IDS[:, feature], feature) for feature in (0, 2)]
  np.testing.assert_allclose(actual, np.sum(expected, axis=0), rtol=1e-6)


def test_features_of_dense_ids_are_combined():
  layer = _layer(combiner='sum')
  actual = layer(_IDS, training=True)
  expected = [
    _rows_of(layer, _IDS[:, feature], feature) for feature in range(3)
  ]
  np.testing.assert_allclose(actual, np.sum(expected, axis=0), rtol=1e-6)


def test_ragged_ids_of_features_stay_ragged():
  layer = _layer()
  ids = tf.ragged.constant([[[7], [7, 8], []]], dtype=tf.int64)
  rows = layer(ids, training=True)
  assert rows.row_lengths(axis=2).to_list() == [[1, 2, 0]]
  np.testing.assert_array_equal(
    rows.flat_values[1:], _rows_of(layer, [7, 8], 1)
  )


def test_a_model_is_loaded_with_its_features(tmp_path):
  ids = keras.Input((_NUMBER,), dtype='int64')
  layer = _layer()
  model = keras.Model(ids, keras.layers.Flatten()(layer(ids)))
  assert model.output_shape == (None, 6)
  model(_IDS, training=True)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(loaded(_IDS), model(_IDS))


@pytest.mark.parametrize(
  ('ids', 'shape'),
  [
    (tf.constant([1, 2, 3]), r'\(3,\)'),
    (tf.constant([[1, 2]]), r'\(1, 2\)'),
    (tf.ragged.constant([[1, 2, 3]]), r'\(1, None\)'),
  ],
)
def test_ids_of_other_numbers_of_features_are_refused(ids, shape):
  with pytest.raises(
    ValueError, match=rf'shape {shape}, but num_features=3\. The second axis'
  ):
    _layer(name='three')(ids)


def test_examples_of_other_numbers_of_features_are_refused():
  ids = tf.ragged.constant([[[1], [2], [3]], [[1], [2]]])
  with pytest.raises(
    tf.errors.InvalidArgumentError, match='three: num_features=3, but examples'
  ):
    _layer(name='three', combiner='sum')(ids)


def test_there_is_a_feature():
  with pytest.raises(ValueError, match='num_features=0, but it is at least 1'):
    tfps.embeddings.Embedding(2, num_features=0)
