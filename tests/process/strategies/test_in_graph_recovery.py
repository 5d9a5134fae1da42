"""With a recovery, one graph over all workers outlasts the loss of a ps.

`test_failover` in tests/process/recovery has each fault.
"""

import math
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import sleeps
from tests.support import turns
import tfps

pytestmark = [
  pytest.mark.tfps_cluster(workers=2, ps=2, processes=True),
]

_Strategy = tfps.replication.InGraphStrategy


def _recovery(folder, **changes):
  return tfps.Recovery(folder, **{'every_secs': 0.5, **changes})


class _Counting:
  """Variables on both ps from which each step subtracts one."""

  def __init__(self, strategy):
    self._strategy = strategy
    with strategy.scope():
      self._numbers = [tf.Variable(0.0, name=name) for name in 'abcd']
      self.latest = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      )
      self._optimizer = keras.optimizers.SGD(1.0)
      self._optimizer.build(self._numbers)

  def step(self, batch):
    with tf.GradientTape() as tape:
      loss = tf.add_n(self._numbers)
    gradients = tape.gradient(loss, self._numbers)
    self._optimizer.apply(gradients, self._numbers)
    self.latest.assign(batch)

  def train(self, steps, *hooks):
    return self._strategy.train(
      self.step,
      lambda context: tf.data.Dataset.range(1_000_000),
      steps=steps,
      steps_per_execution=3,
      hooks=hooks,
    )

  def counts(self):
    return {-float(number.numpy()) for number in self._numbers}


@pytest.mark.exhaustive
def test_steps_are_done_again_with_what_workers_read_anew(
  tfps_cluster, tmp_path
):
  events = losses.Events()
  strategy = _Strategy(
    tfps_cluster.cluster, recovery=_recovery(tmp_path, on_event=events)
  )
  counting = _Counting(strategy)
  # However slow the machine is, there is a snapshot of many steps.
  lose = losses.lose(tfps_cluster, ('ps', 1))
  at = losses.At(60, strategy.guard.keep_writes, lose)
  result = counting.train(240, at)
  assert result.step == 240
  assert counting.counts() == {240.0}
  assert [event.tasks for event in events.of('back')] == [('ps:1',)]
  assert int(counting.latest.numpy()) < 235
  strategy.close()


def test_one_that_does_not_come_back_is_named(tfps_cluster, tmp_path):
  strategy = _Strategy(
    tfps_cluster.cluster,
    recovery=_recovery(tmp_path, timeout_secs=3, take_over_secs=math.inf),
  )
  counting = _Counting(strategy)
  at = losses.At(30, lambda: tfps_cluster.kill('ps', 1))
  with pytest.raises(tfps.errors.DeadlineError, match='ps:1 at'):
    counting.train(10**9, at)


def test_a_lost_worker_is_named(tfps_cluster, tmp_path):
  strategy = _Strategy(
    tfps_cluster.cluster, recovery=_recovery(tmp_path), timeout_secs=3
  )
  counting = _Counting(strategy)
  at = losses.At(30, lambda: tfps_cluster.kill('worker', 1))
  with pytest.raises(tfps.errors.UnreachableError, match='worker:1 at'):
    counting.train(10**9, at)


@pytest.mark.parametrize(
  'takes',
  ['datasets', pytest.param('arrays', marks=pytest.mark.exhaustive)],
)
def test_fit_goes_on(tfps_cluster, tmp_path, takes):
  strategy = _Strategy(
    tfps_cluster.cluster,
    recovery=_recovery(tmp_path, replicas=1, every_secs=600),
  )
  with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile('adam', 'mse', steps_per_execution=2)
  x, y = np.ones([40, 2], 'f'), np.zeros([40, 1], 'f')

  def dataset_fn(context):
    del context
    # Enough for what is left after the loss, if it begins again.
    return tf.data.Dataset.from_tensors((x[:4], y[:4])).repeat(26)

  class Lose(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      del logs
      if batch == 5 and int(model.optimizer.iterations) < 10:
        losses.lose(tfps_cluster, ('ps', 1))()

  given = (dataset_fn,) if takes == 'datasets' else (x, y)
  history = model.fit(
    *given,
    epochs=3,
    batch_size=None if takes == 'datasets' else 4,
    steps_per_epoch=10,
    callbacks=[Lose()],
    verbose=0,
  )
  assert len(history.history['loss']) == 3
  assert strategy.recovery_report().ps_repaired == 1
  repeated = strategy.recovery_report().steps_repeated
  assert 30 <= int(model.optimizer.iterations) <= 30 + repeated
  strategy.close()


@pytest.mark.parametrize(
  ('replicas', 'batch'),
  turns.rarely([(0, 5), (0, 7), (1, 5), (1, 7)], but=[(0, 7)]),
)
def test_what_a_lost_ps_has_interrupted_is_read_again(
  tfps_cluster, tmp_path, replicas, batch
):
  total, size = 120, 60
  strategy = _Strategy(
    tfps_cluster.cluster, recovery=_recovery(tmp_path, replicas=replicas)
  )
  with strategy.scope():
    visits = tf.Variable(tf.zeros([total], tf.int64), trainable=False)
    queue = tfps.input.SplitQueue(
      tfps.input.Ranges(total, size), visitation='exactly_once'
    )

  def step(numbers):
    one = sleeps.slow(0.1, visits.read_value())
    ones = one * tf.ones_like(numbers)
    visits.scatter_add(tf.IndexedSlices(ones, numbers))

  is_lost = False

  def lose_within_a_step(progress):
    nonlocal is_lost
    if progress.step >= 4 and not is_lost:
      is_lost = True
      lose = losses.lose(
        tfps_cluster, ('ps', 0), *([('ps', 1)] * (not replicas))
      )
      threading.Timer(0.05, lose).start()

  strategy.train(
    step,
    lambda context: queue.dataset(context).batch(batch),
    steps_per_execution=2,
    hooks=[lose_within_a_step],
  )
  report = strategy.recovery_report()
  assert report.ps_repaired >= 1
  counts = visits.numpy()
  assert counts.min() == 1
  most = report.steps_repeated * 2 * batch if replicas else 0
  assert counts.sum() <= total + most
  assert report.steps_repeated <= 2
  strategy.close()
