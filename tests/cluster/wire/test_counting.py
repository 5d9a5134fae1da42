"""Every step counts, however its gradients travel and become updates."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import codecs
from tfps import updates

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_ROWS = 3

_FLOAT16, _BFLOAT16 = codecs.Float16(), codecs.BFloat16()

# Each with the number of steps that make an update. Ones survive the casts, so
# that nothing may be missing from their sum. Without any of these, other tests
# count: of coordinator and between graphs, with processes.
_WAYS = {
  'prefetch 2, Float16': (
    {'wire': tfps.Wire(pull=_FLOAT16, push=_FLOAT16, prefetch=2, unroll=4)},
    1,
  ),
  'BFloat16, the rest later': (
    {'wire': tfps.Wire(push=codecs.ErrorFeedback(_BFLOAT16))},
    1,
  ),
  'Accumulate, prefetch 1': (
    {'updates': updates.Accumulate(4), 'wire': tfps.Wire(prefetch=1)},
    4,
  ),
}
_MORE_WAYS = {
  'fused': ({}, 1),
  'not fused': ({'wire': tfps.Wire(fuse=False)}, 1),
  'prefetch 1': ({'wire': tfps.Wire(prefetch=1)}, 1),
  'prefetch 2': ({'wire': tfps.Wire(prefetch=2)}, 1),
  'Float16': ({'wire': tfps.Wire(pull=_FLOAT16, push=_FLOAT16)}, 1),
  'BFloat16': ({'wire': tfps.Wire(pull=_BFLOAT16, push=_BFLOAT16)}, 1),
  'TopK of all': ({'wire': tfps.Wire(push=codecs.TopK(1.0))}, 1),
  'Accumulate': ({'updates': updates.Accumulate(4)}, 4),
}


@pytest.fixture
def steps(request):
  return 10_000 if request.config.getoption('--exhaustive') else 400


class _Counted:
  """Variables from which each step's gradients take ones."""

  def __init__(self, strategy):
    with strategy.scope():
      self.dense = tf.Variable(tf.zeros([5]), name='dense')
      self.table = tf.Variable(tf.zeros([_ROWS, 2]), name='table')
      self.count = tf.Variable(0, dtype=tf.int64, name='count')
      self.optimizer = keras.optimizers.SGD(1.0)
      self.optimizer.build([self.dense, self.table])
    # Between graphs they may have been there already.
    for variable in (self.dense, self.table, self.count):
      variable.assign(tf.zeros_like(variable))
    self.optimizer.iterations.assign(0)

  def step(self, batch):
    with tf.GradientTape() as tape:
      rows = tf.nn.embedding_lookup(self.table, [0, 2, 0])
      loss = tf.reduce_sum(self.dense) + tf.reduce_sum(rows)
    variables = [self.dense, self.table]
    gradients = tape.gradient(loss, variables)
    self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    self.count.assign_add(1)
    return {'loss': tf.cast(batch, tf.float32)}

  def check(self, steps, steps_per_update):
    number = steps // steps_per_update
    assert int(self.count) == steps
    assert int(self.optimizer.iterations) == number
    np.testing.assert_array_equal(self.dense.numpy(), np.full(5, -number))
    rows = np.array([-2 * number, 0, -number])
    np.testing.assert_array_equal(self.table.numpy(), rows[:, None] + [0, 0])


def _batches(context):
  del context
  return tf.data.Dataset.from_tensors(0).repeat()


_HOW = {'steps_per_execution': 100}


def _with_a_coordinator(cluster, way, steps):
  how, steps_per_update = way
  strategy = tfps.ParameterServerStrategy(cluster, **how)
  counted = _Counted(strategy)
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    coordinator.train(counted.step, _batches, steps=steps, **_HOW)
  counted.check(steps, steps_per_update)
  assert strategy.wire_report().steps == steps


def _between_graphs(cluster, way, steps):
  how, steps_per_update = way
  strategy = tfps.BetweenGraphStrategy(cluster, **how)
  counted = _Counted(strategy)
  strategy.global_step.assign(0)
  strategy.train(counted.step, _batches, steps=steps, **_HOW)
  counted.check(steps, steps_per_update)
  assert strategy.wire_report().steps == steps


def _in_fit(cluster, way, steps):
  how, steps_per_update = way
  strategy = tfps.ParameterServerStrategy(cluster, **how)
  with strategy.scope():
    model = keras.Sequential(
      [layers.Input((1,)), layers.Dense(1, kernel_initializer='zeros')]
    )
    model.compile(
      keras.optimizers.SGD(1.0),
      loss=lambda y_true, y_pred: y_pred,
      steps_per_execution=8,
    )
  ones = np.ones([steps, 1], 'f')
  model.fit(ones, ones, batch_size=1, verbose=0)
  number = steps // steps_per_update
  assert int(model.optimizer.iterations) == number
  kernel, bias = model.get_weights()
  assert kernel.tolist() == [[-number]]
  assert bias.tolist() == [-number]


_MODES = {
  'coordinator': (_with_a_coordinator,),
  'between graphs': (_between_graphs,),
  'fit': (_in_fit,),
}


@pytest.mark.parametrize(('count', 'way'), turns.by_turns(_WAYS, _MODES))
def test_every_step_counts(tfps_cluster, count, way, steps):
  count(tfps_cluster.cluster, way, steps)


@pytest.mark.exhaustive
@pytest.mark.parametrize(('count', 'way'), turns.by_turns(_MORE_WAYS, _MODES))
def test_every_step_counts_in_more_ways(tfps_cluster, count, way, steps):
  count(tfps_cluster.cluster, way, steps)
