"""Functions of datasets in `evaluate`, `predict` and validation by `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import seen_metric
import tfps
from tfps import replication

# Losses are added up without rounding, whichever worker's come first.
_X = np.arange(32, dtype='f')[:, None] / 64
_Y = 2 * _X
_WEIGHTS = [np.array([[0.5]], 'f'), np.array([1.0], 'f')]

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=1)


@pytest.fixture(
  params=[
    tfps.ParameterServerStrategy,
    pytest.param(replication.InGraphStrategy, marks=pytest.mark.exhaustive),
  ],
  ids=lambda strategy: strategy.__name__,
)
def strategy(request, tfps_cluster):
  return request.param(tfps_cluster.cluster)


@pytest.fixture
def model(strategy):
  """A model whose training changes nothing."""
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(
      keras.optimizers.SGD(0.0), 'mse', weighted_metrics=[seen_metric.Seen()]
    )
  model.set_weights(_WEIGHTS)
  return model


def _dataset(context) -> tf.data.Dataset:
  examples = tf.data.Dataset.from_tensor_slices((_X, _Y))
  return examples.shard(
    context.num_input_pipelines, context.input_pipeline_id
  ).batch(2)


def _num_steps(strategy) -> int:
  """Returns the number of steps that take all data."""
  in_graph = isinstance(strategy, replication.InGraphStrategy)
  return len(_X) // (4 if in_graph else 2)


def test_each_validation_begins_with_the_first_batch(model, strategy):
  steps = _num_steps(strategy)
  history = model.fit(
    _X,
    _Y,
    epochs=3,
    validation_data=_dataset,
    validation_steps=steps,
    verbose=0,
  ).history
  expected = model.evaluate(_X, _Y, verbose=0, return_dict=True)
  assert history['val_seen'] == [len(_X)] * 3
  assert history['val_loss'] == [expected['loss']] * 3


def test_training_goes_on_where_the_last_epoch_ended(model, strategy):
  steps = _num_steps(strategy) // 2
  arguments = {'steps_per_epoch': steps, 'epochs': 2, 'verbose': 0}
  history = model.fit(
    _dataset, validation_data=_dataset, validation_steps=1, **arguments
  ).history
  expected = model.evaluate(_X, _Y, verbose=0, return_dict=True)
  assert sum(history['seen']) == len(_X)
  assert np.mean(history['loss']) == expected['loss']


@pytest.mark.parametrize('steps', [4, 30])
def test_predict_takes_the_batches_in_order(model, steps):
  found = model.predict(
    lambda context: _dataset(context).map(lambda x, y: x),
    steps=steps,
    verbose=0,
  )
  expected = model.predict(_X, verbose=0)[: 2 * steps]
  np.testing.assert_array_equal(found, expected)


def test_validation_of_unknown_size_may_be_done_to_its_end(model):
  data = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(8)
  history = model.fit(
    _X,
    _Y,
    epochs=3,
    validation_data=data.filter(lambda x, y: True),
    validation_steps=len(_X) // 8,
    verbose=0,
  ).history
  assert history['val_seen'] == [len(_X)] * 3
