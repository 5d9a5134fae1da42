"""Row groups of Parquet files in clusters within this process."""

import keras
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.server import row_groups

_ROWS, _GROUP, _BATCH = [30, 7, 13], 8, 4
_TOTAL = sum(_ROWS)
_MODES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
  'in graph': tfps.replication.InGraphStrategy,
}


@pytest.fixture
def strategy(request, tfps_cluster):
  return _MODES[request.param](tfps_cluster.cluster)


def in_modes(*modes):
  """Runs a test in these modes, and in all with --exhaustive."""
  return pytest.mark.parametrize(
    'strategy', turns.rarely(list(_MODES), but=modes), indirect=True
  )


@pytest.fixture
def files(tmp_path):
  """Rows with the numbers from 0 on, and so many ones as `number % 3`."""
  first = 0
  for i, length in enumerate(_ROWS):
    numbers = np.arange(first, first + length)
    columns = {
      'number': numbers,
      'ones': [[1.0] * (number % 3) for number in numbers],
      'x': numbers / _TOTAL,
      'y': 2 * numbers / _TOTAL,
    }
    path = tmp_path / f'{i}.parquet'
    parquet.write_table(pa.table(columns), path, row_group_size=_GROUP)
    first += length
  return tmp_path / '*.parquet'


class Visits:
  """How often each row was in a step, and how many ones were there."""

  def __init__(self, strategy):
    self._strategy = strategy
    with strategy.scope():
      self._visits, self._ones = (
        tf.Variable(tf.zeros([_TOTAL], dtype), trainable=False)
        for dtype in (tf.int64, tf.float32)
      )

  def step(self, rows):
    numbers = rows['number']
    ones = tf.cast(tf.reduce_sum(rows['ones'], axis=1), tf.float32)
    self._visits.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
    self._ones.scatter_add(tf.IndexedSlices(ones, numbers))

  def train(self, dataset_fn, **kwargs):
    if hasattr(self._strategy, 'train'):
      self._strategy.train(self.step, dataset_fn, **kwargs)
    else:
      with tfps.Coordinator(self._strategy, timeout_secs=60) as coordinator:
        coordinator.train(self.step, dataset_fn, **kwargs)

  def check(self, times):
    np.testing.assert_array_equal(self._visits.numpy(), times)
    expected = times * (np.arange(_TOTAL) % 3)
    np.testing.assert_array_equal(self._ones.numpy(), expected)


def _queue(strategy, files, *, epochs=1, **kwargs):
  with strategy.scope():
    return tfps.input.SplitQueue(
      tfps.input.Parquet(files, batch_size=_BATCH, **kwargs),
      epochs=epochs,
      shuffle_seed=1,
    )


_COLUMNS = ['number', 'ones']


@pytest.mark.tfps_cluster(workers=2, ps=1)
@in_modes('between graphs')
def test_each_row_is_visited_once_in_each_epoch(strategy, files):
  visits = Visits(strategy)
  queue = _queue(strategy, files, epochs=2, columns=_COLUMNS)
  visits.train(queue.dataset, steps_per_execution=2)
  visits.check(times=2)
  assert str(queue.report()) == 'epoch 1: 0 to do, 0 doing, 7 done'


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=2, ps=1)
@in_modes('coordinator')
def test_rows_may_be_shuffled_and_batched_by_the_dataset_function(
  strategy, files
):
  with strategy.scope():
    queue = tfps.input.SplitQueue(
      tfps.input.Parquet(files, columns=_COLUMNS), visitation='exactly_once'
    )
  visits = Visits(strategy)
  visits.train(
    lambda context: (
      queue.dataset(context).shuffle(_GROUP, seed=queue.epoch()).batch(3)
    )
  )
  visits.check(times=1)


@pytest.mark.tfps_cluster(workers=1, ps=1)
@in_modes('coordinator')
@pytest.mark.parametrize('is_made_within', [True, False])
def test_all_row_groups_are_a_dataset_without_a_queue(
  strategy, files, is_made_within
):
  found = tfps.input.Parquet(files, columns=_COLUMNS, batch_size=_BATCH)
  made = found.dataset()
  visits = Visits(strategy)
  visits.train(
    lambda context: (
      found.dataset(context, shuffle_seed=2) if is_made_within else made
    ).repeat(),
    steps=2 * sum(1 for _ in made),
  )
  visits.check(times=2)


@pytest.mark.tfps_cluster(workers=1, ps=1)
@in_modes('coordinator')
def test_fit_takes_features_and_label(strategy, files):
  queue = _queue(strategy, files, columns=['x'], label='y')
  with strategy.scope():
    x = keras.Input([], name='x')
    y = keras.layers.Dense(1, kernel_initializer='ones')(x[:, None])
    model = keras.Model({'x': x}, y)
    model.compile(keras.optimizers.SGD(0.0), 'mse')
  history = model.fit(queue.dataset, verbose=0)
  # Of a model that yields x, for labels that are twice as large.
  errors = np.square(np.arange(_TOTAL) / _TOTAL)
  assert history.history['loss'] == [pytest.approx(np.mean(errors), rel=1e-4)]


@pytest.mark.tfps_cluster(workers=1, ps=1)
@in_modes('coordinator')
def test_a_row_group_that_cannot_be_read_is_named(strategy, files):
  queue = _queue(strategy, files, columns=_COLUMNS)
  path = files.parent / '1.parquet'
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(
    tfps.InputError,
    match=r'1\.parquet, row group 0 could not be read by (worker|chief):0: '
    r'is not a Parquet file, or was cut short \(.*\)\. Write it again, or '
    r'leave it out\.$',
  ):
    Visits(strategy).train(queue.dataset)


@pytest.mark.tfps_cluster(workers=1, ps=1)
@in_modes('coordinator')
def test_a_worker_that_does_not_offer_to_read_is_told(
  strategy, files, monkeypatch
):
  queue = _queue(strategy, files, columns=_COLUMNS)
  monkeypatch.setattr(row_groups, 'NAME', 'read_of_another_version')
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=r"does not offer 'tfps/read_of_another_version'.*tfps\.serve",
  ):
    Visits(strategy).train(queue.dataset)
