"""Row groups of Parquet files that worker processes read."""

import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import sleeps
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=1, processes=True)

_ROWS, _GROUP, _BATCH, _PER_EXECUTION = [130, 70, 200], 25, 5, 2
_TOTAL = sum(_ROWS)
_NUM_GROUPS = sum(-(-rows // _GROUP) for rows in _ROWS)


@pytest.fixture
def files(tmp_path):
  """Rows with the numbers from 0 on, and their names."""
  first = 0
  for i, length in enumerate(_ROWS):
    numbers = np.arange(first, first + length)
    columns = {'number': numbers, 'name': [f'n{number}' for number in numbers]}
    path = tmp_path / f'{i}.parquet'
    parquet.write_table(pa.table(columns), path, row_group_size=_GROUP)
    first += length
  return tmp_path / '*.parquet'


def _visits(processes, files, *hooks, epochs):
  """How often each row was in a step, by worker."""
  strategy = tfps.ParameterServerStrategy(processes.cluster)
  with strategy.scope():
    visits = tf.Variable(tf.zeros([2, _TOTAL], tf.int64), trainable=False)
    queue = tfps.input.SplitQueue(
      tfps.input.Parquet(files, batch_size=_BATCH),
      epochs=epochs,
      visitation='exactly_once',
    )

  def dataset(context):
    worker = context.input_pipeline_id
    return queue.dataset(context).map(lambda rows: (rows, worker))

  def step(batch):
    rows, worker = batch
    numbers = tf.strings.to_number(
      tf.strings.substr(rows['name'], 1, 9), tf.int64
    )
    tf.debugging.assert_equal(numbers, rows['number'])
    number = sleeps.slow(0.02) * tf.ones_like(numbers)
    places = tf.stack(
      [tf.fill(tf.shape(numbers), worker), tf.cast(numbers, tf.int32)]
    )
    visits.scatter_nd_add(tf.transpose(places), number)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    coordinator.train(
      step, dataset, steps_per_execution=_PER_EXECUTION, hooks=hooks
    )
  (count,) = queue.report().epochs.values()
  assert (count.to_do, count.doing, count.done) == (0, 0, _NUM_GROUPS)
  return visits.numpy()


@pytest.mark.exhaustive
def test_workers_share_row_groups(processes, files):
  visits = _visits(processes, files, epochs=2)
  np.testing.assert_array_equal(visits.sum(axis=0), 2)
  assert visits.sum(axis=1).min() > 0  # each of them took part


def test_what_a_killed_worker_was_at_is_taken_by_the_other(processes, files):
  hook = losses.At(20, lambda: processes.kill('worker', 1))
  counts = _visits(processes, files, hook, epochs=1).sum(axis=0)
  assert counts.min() == 1
  # The execution at which it was, of which nothing counts.
  assert counts.sum() - _TOTAL <= _PER_EXECUTION * _BATCH
