"""How TensorFlow traces the replicas of a step into one graph."""

import pytest
import tensorflow as tf

import tfps
from tfps._compat import replicas
from tfps._compat import shared_variables
from tfps.variables import step_replicas

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=1, devices_per_worker=2)


@pytest.fixture
def strategy(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  strategy.extended._allow_run_without_coordinator = True
  return strategy


def _run(strategy, step, *batches):
  @tf.function
  def run():
    return strategy.run(step, args=(replicas.Batches(batches),))

  with tf.device('/job:worker/task:0'):
    return replicas.of_each(run(), len(batches))


def test_each_replica_has_a_device_a_number_and_its_batch(strategy):
  seen = []

  def step(batch):
    context = tf.distribute.get_replica_context()
    is_tensor = tf.is_tensor(context.replica_id_in_sync_group)
    device = tf.raw_ops.NoOp().device
    seen.append((replicas.current(), device, is_tensor))
    return batch * 10

  found = _run(strategy, step, tf.constant(1), tf.constant(2))
  assert [int(value) for value in found] == [10, 20]
  # Its public number is a tensor, by which no device can be chosen in tracing.
  assert seen == [(0, '/device:CPU:0', True), (1, '/device:CPU:1', True)]


def test_there_may_be_fewer_batches_than_devices(strategy):
  found = _run(strategy, lambda batch: batch * 10, tf.constant(1))
  assert [int(value) for value in found] == [10]


def test_replicas_meet_outside_of_any(strategy):
  seen = []

  def merge(_, value):
    seen.append(tf.distribute.in_cross_replica_context())
    return tf.add_n(replicas.of_each(value, 2))

  def step(batch):
    context = tf.distribute.get_replica_context()
    assert step_replicas.is_replica_traced(strategy)
    return context.merge_call(merge, args=(batch,))

  found = _run(strategy, step, tf.constant(1), tf.constant(2))
  assert {int(value) for value in found} == {3}
  assert seen == [True]


def test_what_replicas_assign_is_made_one(strategy):
  def make(**kwargs):
    with tf.device('/job:ps/task:0/device:CPU:0'):
      return tf.Variable(**kwargs)

  create = replicas.aggregating(
    strategy, make, tf.VariableAggregation.ONLY_FIRST_REPLICA
  )
  variable = create(initial_value=0)
  _run(strategy, variable.assign_add, tf.constant(1), tf.constant(2))
  assert int(variable.numpy()) == 1


def test_a_resource_is_used_where_it_is(strategy):
  del strategy  # is connected

  @tf.function
  def run():
    handle = shared_variables.handle('there', shape=[], dtype=tf.float32)
    for i in range(2):
      with tf.device(f'/device:CPU:{i}'):
        tf.raw_ops.AssignVariableOp(resource=handle, value=float(i))
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

  with tf.device('/job:worker/task:0'):
    assert float(run()) == 1.0
