"""No worker runs further ahead of the slowest than it may."""

import collections
import concurrent.futures
import threading
import time

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps.updates.sync import worker_table

_WORKERS = 3

pytestmark = pytest.mark.tfps_cluster(workers=_WORKERS, ps=2)


class _Counted:
  """Takes 1 from a number in each step, and notes who begins which step."""

  def __init__(self, strategy):
    self.begun = collections.Counter()
    self.leads = []
    self._lock = threading.Lock()
    with strategy.scope():
      self.number = tf.Variable(0.0, dtype=tf.float64, name='number')
      self.optimizer = keras.optimizers.SGD(1.0)

  def step(self, batch):
    with tf.GradientTape() as tape:
      loss = tf.identity(self.number)
    # Once the number has been read.
    noted = tf.numpy_function(self._note, [batch, loss], tf.float64)
    noted = tf.ensure_shape(noted, [])
    gradient = tape.gradient(loss, self.number)
    self.optimizer.apply([gradient + 0 * noted], [self.number])

  def _note(self, worker, value):
    del value
    with self._lock:
      others = [self.begun[w] for w in range(_WORKERS) if w != worker]
      self.leads.append(self.begun[int(worker)] - min(others))
      self.begun[int(worker)] += 1
    return np.float64(0)

  def wait_for_lead(self, lead):
    waiting.until(lambda: max(self.leads, default=0) >= lead)


def _batches(hold_up):
  """Each worker's number; the second worker is held up before each batch."""

  def dataset_fn(context):
    own = context.input_pipeline_id

    def number():
      if own == 1:
        hold_up()
      return np.int64(own)

    return tf.data.Dataset.counter().map(
      lambda _: tf.ensure_shape(tf.numpy_function(number, [], tf.int64), [])
    )

  return dataset_fn


def _train(cluster, updates, *, lead=0, **kwargs):
  """The largest lead, having waited for one of so many steps."""
  strategy = tfps.ParameterServerStrategy(cluster, updates=updates, **kwargs)
  counted = _Counted(strategy)

  def hold_up():
    counted.wait_for_lead(lead)
    time.sleep(0.02)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(
      counted.step, _batches(hold_up), steps=60, steps_per_execution=2
    )
  assert float(counted.number.numpy()) == -60
  assert int(counted.optimizer.iterations) == 60
  return max(counted.leads)


@pytest.mark.parametrize(
  'max_lead', [pytest.param(0, marks=pytest.mark.exhaustive), 3]
)
def test_leads_are_bounded(tfps_cluster, max_lead):
  updates = tfps.updates.BoundedStaleness(max_lead)
  # Steps begun; of a worker that is behind one may not be done.
  assert _train(tfps_cluster.cluster, updates) <= max_lead


@pytest.mark.exhaustive
def test_a_large_bound_is_none(tfps_cluster):
  updates = tfps.updates.BoundedStaleness(1000)
  assert _train(tfps_cluster.cluster, updates, lead=20) >= 20


@pytest.mark.exhaustive
def test_cuts_do_not_hold_up_workers(tfps_cluster, tmp_path):
  recovery = tfps.Recovery(tmp_path, every_secs=0.1)
  updates = tfps.updates.BoundedStaleness(1)
  _train(tfps_cluster.cluster, updates, recovery=recovery)


@pytest.mark.exhaustive
@pytest.mark.parametrize('ends_unheard_of', [0, 1])
def test_who_is_last_waits_for_nobody(tfps_cluster, ends_unheard_of):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.BoundedStaleness(0)
  )
  counted = _Counted(strategy)

  @tf.function
  def end():
    strategy.sync_session.sync_ops.end(tf.constant(1, tf.int64))

  def end_once_more(progress):  # as when only the answer is lost
    if progress.step == 20 and ends_unheard_of:
      end()

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(
      counted.step,
      _batches(lambda: None),
      steps=50,  # two of three workers do not take part in the end
      steps_per_execution=2,
      hooks=[end_once_more],
    )
  assert float(counted.number.numpy()) == -50


@pytest.mark.exhaustive
def test_who_comes_back_does_not_wait_for_those_that_are_done(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.BoundedStaleness(0)
  )
  sync_session = strategy.sync_session

  def steps(*told):
    walk = sync_session.sync_step(*told)
    for number in range(3):
      with walk.step(number):
        pass
    return tf.constant(0)

  execute = tf.function(sync_session.around(steps))
  sync_session.members.leave_out(1)
  for worker in (0, 2):
    sync_session.end(worker)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(execute, tf.constant(1, tf.int64)).result(30)
  sync_session.end(1)
  # Who comes next waits for all.
  assert set(sync_session.state.workers.members.numpy()[:_WORKERS]) == {
    worker_table.PRESENT
  }


@pytest.mark.exhaustive
def test_fit_counts_every_batch(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.BoundedStaleness(0)
  )
  with strategy.scope():
    model = keras.Sequential([layers.Input((1,)), layers.Dense(1)])
    model.compile('sgd', 'mse', steps_per_execution=3)
  x = np.ones([41, 1], 'f')
  model.fit(x, x, batch_size=2, epochs=2, verbose=0)
  assert int(model.optimizer.iterations) == 2 * 21


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'max_lead': -1}, 'max_lead is -1'),
    ({'max_lead': 1.5}, r'max_lead is 1\.5'),
    ({'max_lead': 1, 'timeout_secs': 0}, 'timeout_secs is 0'),
  ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    tfps.updates.BoundedStaleness(**arguments)
