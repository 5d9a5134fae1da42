"""Replicas of variables get each update on another ps, too."""

import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps._compat import replicated_writes
from tfps.recovery import replicas as replicas_lib
from tfps.variables import partitioners

IN_PROCESS = pytest.mark.tfps_cluster(workers=2, ps=3)


def _twins_of(variable):
  if isinstance(variable, keras.Variable):
    variable = variable.value
  shards = getattr(variable, 'variables', [variable])
  found = [replicated_writes.replica_of(shard) for shard in shards]
  assert all(twin is not None for twin in found)
  for shard, twin in zip(shards, found, strict=True):
    assert shard.device != twin.device
  return np.concatenate([np.atleast_1d(t.numpy()) for t in found])


def _check(variables):
  for variable in variables:
    own = np.atleast_1d(variable.numpy())
    np.testing.assert_array_equal(_twins_of(variable), own)


STRATEGIES = {
  'coordinator': (tfps.ParameterServerStrategy,),
  'between graphs': (tfps.BetweenGraphStrategy,),
}


_KINDS = [kind for (kind,) in STRATEGIES.values()]


@pytest.fixture(params=_KINDS)
def strategy(request, tfps_cluster, tmp_path):
  strategy = request.param(
    tfps_cluster.cluster,
    partitioners.MinSize(min_shard_bytes=64, max_shards=3),
    recovery=tfps.Recovery(tmp_path, replicas=1),
  )
  yield strategy
  strategy.close()


def _run(strategy, step, times):
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    for _ in range(times):
      tf.function(lambda: strategy.run(step))()
    return
  coordinator = tfps.Coordinator(strategy, timeout_secs=60)
  for _ in range(times):  # one after the other
    coordinator.schedule(tf.function(lambda: strategy.run(step)))
    coordinator.join()


@IN_PROCESS
def test_a_copy_that_does_not_end_is_told(tfps_cluster, tmp_path, set_timeouts):
  set_timeouts(cancel_secs=0.1)
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path, replicas=1)
  )
  replicas = strategy.guard.copies.replicas
  with (
    replicas._between_copies(),
    pytest.raises(tfps.DeadlineError, match=r'not ended .*0\.1 .* Check wh'),
  ):
    replicas.copy()
  strategy.close()


@IN_PROCESS
def test_values_are_as_old_as_the_last_copy_of_their_ps(
  tfps_cluster, tmp_path, monkeypatch
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(tmp_path, replicas=1, replicate_every_secs=3600.0),
  )
  with strategy.scope():
    variables = [tf.Variable(float(i), name=f'of_{i}') for i in range(3)]
  (first,) = (v for v in variables if v.device.endswith('task:0/device:CPU:0'))
  now = 100.0
  clock = types.SimpleNamespace(monotonic=lambda: now)
  monkeypatch.setattr(replicas_lib, 'time', clock)
  replicas = strategy.guard.copies.replicas
  replicas.copy()
  value = first.numpy()
  tf.raw_ops.DestroyResourceOp(resource=first.handle)
  now = 110.0
  with pytest.raises(tf.errors.InvalidArgumentError, match='has no value'):
    replicas.copy()
  now = 111.0
  assert replicas.restore({2}) == 1.0
  assert replicas.restore({0}) == 11.0
  assert first.numpy() == value
  strategy.close()


@IN_PROCESS
def test_a_replica_that_the_chief_does_not_create_is_told(
  tfps_cluster, tmp_path
):
  recovery = tfps.Recovery(tmp_path, replicas=1, timeout_secs=0.1)
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster,
    recovery=dataclasses.replace(recovery, replicas=0),
  )
  with strategy.scope():
    lonely = tf.Variable(1.0, name='lonely')
  (entry,) = (
    each
    for each in strategy.guard.copies.inventory.entries()
    if each.key == 'lonely'
  )
  replicas = replicas_lib.Replicas(recovery, 3, device='/job:chief/task:0')
  with pytest.raises(
    tfps.DeadlineError,
    match=r'not created the replica of lonely .* 0\.1 seconds\. Check that',
  ):
    replicas.attach(entry)
  del lonely
  strategy.close()


OPTIMIZERS = {
  'SGD': lambda: keras.optimizers.SGD(0.1),
  'SGD-momentum-ema': lambda: keras.optimizers.SGD(
    0.1, momentum=0.9, weight_decay=0.01, use_ema=True
  ),
  'Adam': lambda: keras.optimizers.Adam(0.1, clipnorm=0.5),
  'Adagrad-accumulation': lambda: keras.optimizers.Adagrad(
    0.1, gradient_accumulation_steps=2
  ),
  'Lamb, which no rule serves': lambda: keras.optimizers.Lamb(0.1),
  'Nadam': lambda: keras.optimizers.Nadam(0.1),
}


@IN_PROCESS
@pytest.mark.parametrize(
  ('strategy', 'make_optimizer'),
  turns.by_turns(
    OPTIMIZERS,
    STRATEGIES,
    rarely=[name for name in OPTIMIZERS if name != 'Adam'],
  ),
  indirect=['strategy'],
)
def test_optimizers_update_both(strategy, make_optimizer):
  with strategy.scope():
    variables = [
      keras.Variable(np.ones([9, 4], 'f'), name='table'),
      keras.Variable(np.ones([3], 'f'), name='bias'),
    ]
    optimizer = make_optimizer()
    optimizer.build(variables)
  gradients = [tf.random.stateless_normal(v.shape, (1, 2)) for v in variables]
  before = variables[0].numpy()
  _run(strategy, lambda: optimizer.apply(gradients, variables), 3)
  assert (variables[0].numpy() != before).all()
  _check([*variables, *optimizer.variables])


@IN_PROCESS
@pytest.mark.exhaustive
@pytest.mark.parametrize('strategy', _KINDS, indirect=True)
def test_rows_of_embeddings_are_updated_on_both(strategy):
  with strategy.scope():
    table = keras.Variable(np.ones([9, 4], 'f'))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([table])

  def step():
    rows = tf.IndexedSlices(
      tf.ones([3, 4]), tf.constant([8, 1, 8]), tf.constant([9, 4])
    )
    optimizer.apply([rows], [table])

  _run(strategy, step, 2)
  assert (table.numpy()[8] != table.numpy()[1]).all()
  _check([table, *optimizer.variables])


@pytest.mark.quick
@IN_PROCESS
def test_what_a_step_writes_by_itself_goes_to_both(strategy):
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False, name='count')
    table = tf.Variable(tf.zeros([9, 4]), name='table')

  def step():
    count.assign_add(1)
    table.assign_sub(tf.ones([9, 4]))

  _run(strategy, step, 3)
  assert count.numpy() == 3
  _check([count, table])


@IN_PROCESS
def test_what_the_chief_writes_goes_to_both(strategy):
  with strategy.scope():
    model = keras.Sequential([keras.Input([20]), keras.layers.Dense(3)])
  model.set_weights([np.full(w.shape, 7, 'f') for w in model.weights])
  _check(model.weights)
  count = model.weights[1].value
  count.assign_add([1.0, 2.0, 3.0])
  _check(model.weights)


def _inventory_of(strategy):
  return strategy.guard.copies.inventory


@IN_PROCESS
def test_the_placement_report_counts_them(strategy):
  with strategy.scope():
    tf.Variable(tf.zeros([9, 4]), name='table')
    tf.Variable(0, dtype=tf.int64, trainable=False, name='count')
  on_ps = [0, 0, 0]
  for entry in _inventory_of(strategy).entries():
    if 'marks' in entry.key or 'staleness' in entry.key:
      continue  # they are in no report
    for piece in entry.pieces():
      twin = replicated_writes.replica_of(piece.variable)
      ps = int(tf.DeviceSpec.from_string(twin.device).task)
      on_ps[ps] += twin.dtype.size * twin.shape.num_elements()
  assert strategy.placement_report().replica_bytes == tuple(on_ps)
  assert sum(on_ps) == sum(strategy.placement_report().num_bytes) > 0


@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_one_ps_has_nobody_to_be_a_replica(tfps_cluster, tmp_path):
  with pytest.raises(ValueError, match='replicas=1 with 1 ps'):
    tfps.ParameterServerStrategy(
      tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path, replicas=1)
    )
