"""Datasets of workers that end before the epoch does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import seen_metric
import tfps

_BATCH = 4
_NUM_BATCHES = 5, 9  # of each worker
_NUM_STEPS = sum(_NUM_BATCHES)
_NUM_IDS = _NUM_STEPS * _BATCH
_IDS = np.arange(_NUM_IDS, dtype='int32').reshape(_NUM_STEPS, _BATCH, 1)

two_workers = pytest.mark.tfps_cluster(workers=2, ps=2)
in_each_way = pytest.mark.parametrize(
  ('updates', 'steps_per_execution'),
  [
    pytest.param(None, 1, id='async', marks=pytest.mark.exhaustive),
    pytest.param(None, 3, id='async, 3 steps'),
    pytest.param(tfps.updates.Sync(), 1, id='sync'),
    pytest.param(
      tfps.updates.Sync(), 3, id='sync, 3 steps', marks=pytest.mark.exhaustive
    ),
  ],
)


def _dataset(context) -> tf.data.Dataset:
  first = sum(_NUM_BATCHES[: context.input_pipeline_id])
  own = _IDS[first : first + _NUM_BATCHES[context.input_pipeline_id]]
  return tf.data.Dataset.from_tensor_slices((own, np.ones_like(own, 'f')))


def _build(steps_per_execution) -> keras.Model:
  """Returns a table, of which a step takes 0.5 off the rows that it sees."""
  model = keras.Sequential(
    [keras.Input([1], dtype='int32'), keras.layers.Embedding(_NUM_IDS, 1)]
  )
  model.compile(
    keras.optimizers.SGD(0.5 * _BATCH),
    lambda y, value: keras.ops.sum(value, axis=1),
    weighted_metrics=[seen_metric.Seen()],
    steps_per_execution=steps_per_execution,
  )
  return model


def _table(model) -> np.ndarray:
  return np.array(model.layers[0].get_weights()[0])


@two_workers
@in_each_way
def test_each_batch_is_trained_on_once(
  tfps_cluster, updates, steps_per_execution
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster, updates=updates)
  with strategy.scope():
    model = _build(steps_per_execution)
  before = _table(model)
  with pytest.warns(UserWarning, match='ran out of data') as warned:
    logs = model.fit(_dataset, steps_per_epoch=100, verbose=0).history

  assert len([each for each in warned if 'ran out' in str(each.message)]) == 1
  num_updates = max(_NUM_BATCHES) if updates else _NUM_STEPS
  assert int(model.optimizer.iterations) == num_updates
  if steps_per_execution == 1:
    assert logs['seen'] == [_NUM_IDS]
  moved = (before - _table(model)).reshape(_NUM_STEPS, _BATCH)
  expected = np.full([_NUM_STEPS, 1], 0.5)
  if updates:  # a mean of two while both have batches
    expected[: 2 * min(_NUM_BATCHES)] = 0.25
  np.testing.assert_allclose(moved, expected.repeat(_BATCH, 1), rtol=1e-4)


@pytest.mark.exhaustive
@two_workers
def test_an_epoch_continues_where_the_one_before_it_ended(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(1)
  before = _table(model)
  seen = model.fit(
    _dataset, steps_per_epoch=_NUM_STEPS // 2, epochs=2, verbose=0
  ).history['seen']

  assert seen == [_NUM_IDS / 2] * 2
  assert int(model.optimizer.iterations) == _NUM_STEPS
  np.testing.assert_allclose(before - _table(model), 0.5, rtol=1e-5)


@two_workers
def test_a_further_epoch_begins_with_all_data(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(1)
  with pytest.warns(UserWarning, match='ran out of data'):
    logs = model.fit(_dataset, steps_per_epoch=100, epochs=2, verbose=0).history
  assert logs['seen'] == [_NUM_IDS, _NUM_IDS]


@two_workers
def test_evaluation_sees_each_batch(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(1)
  with pytest.warns(UserWarning, match='ran out of data'):
    found = model.evaluate(_dataset, steps=100, verbose=0, return_dict=True)

  assert found['seen'] == _NUM_IDS
  mean = _table(model).mean()
  np.testing.assert_allclose(found['loss'], mean, rtol=1e-4, atol=1e-6)


@two_workers
def test_an_epoch_of_workers_in_one_graph_ends_with_the_first(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = _build(1)
  with pytest.warns(UserWarning, match='ran out of data'):
    model.fit(_dataset, steps_per_epoch=100, verbose=0)
  assert int(model.optimizer.iterations) == min(_NUM_BATCHES)
