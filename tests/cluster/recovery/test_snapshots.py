"""Snapshots, and replicas of variables that are copied now and then."""

import os
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import turns
from tests.support import waiting
import tfps
from tfps import testing
from tfps._compat import handles
from tfps.variables import partitioners

IN_PROCESS = pytest.mark.tfps_cluster(workers=2, ps=3)


_KINDS = [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]


@pytest.fixture(params=turns.rarely(_KINDS, but=_KINDS[1:]))
def make_strategy(request, tfps_cluster, tmp_path):
  made = []

  def make(every_secs=3600):
    recovery = tfps.Recovery(
      tmp_path, replicas=1, replicate_every_secs=every_secs
    )
    made.append(
      request.param(
        tfps_cluster.cluster,
        partitioners.MinSize(min_shard_bytes=8, max_shards=3),
        recovery=recovery,
      )
    )
    return made[-1]

  yield make
  for strategy in made:
    strategy.close()


def _variables(strategy):
  with strategy.scope():
    return [
      tf.Variable(tf.zeros([9, 4]), name='table'),
      tf.Variable(0, dtype=tf.int64, trainable=False, name='count'),
      tf.Variable(0.0, name='one'),
      tf.Variable(0.0, name='other'),
    ]


def _surviving(strategy):
  """What calls a function that trains."""
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    return strategy.surviving
  coordinator = tfps.Coordinator(strategy, timeout_secs=60)

  def execute(function):
    coordinator.schedule(tf.function(function))
    coordinator.join()

  return execute


def _twins(strategy):
  """What is in the twins, by the names of their variables."""
  return {
    variable.name: set(np.ravel(twin.numpy()).tolist())
    for variable, twin in strategy.guard.copies.replicas.pairs()
  }


def _twins_of(strategy, variables):
  names = [
    shard.name for v in variables for shard in getattr(v, 'variables', [v])
  ]
  twins = _twins(strategy)
  return {value for name in names for value in twins[name]}


@IN_PROCESS
def test_twins_are_as_their_variables_were_at_the_last_copy(make_strategy):
  strategy = make_strategy()
  variables = _variables(strategy)
  for variable in variables:  # as weights are loaded before training
    variable.assign(tf.fill(variable.shape, tf.constant(5, variable.dtype)))
  execute = _surviving(strategy)
  execute(lambda: losses.add_one(variables))
  assert _twins_of(strategy, variables) == {5}
  strategy.guard.copies.keep()
  assert _twins_of(strategy, variables) == {6}
  assert losses.values(variables) == {6}


@pytest.mark.quick
@IN_PROCESS
def test_copies_are_made_now_and_then(make_strategy):
  strategy = make_strategy(every_secs=0.05)
  variables = _variables(strategy)
  execute = _surviving(strategy)
  for value in (1, 2):
    execute(lambda: losses.add_one(variables))
    waiting.until(
      lambda value=value: _twins(strategy)[variables[1].name] == {value}
    )


@IN_PROCESS
def test_a_copy_that_fails_leaves_the_twins_of_a_ps_as_they_were(make_strategy):
  strategy = make_strategy()
  variables = _variables(strategy)
  with strategy.scope():
    lost = tf.Variable(tf.zeros([9, 4]), name='lost')  # in shards, on each ps
  strategy.guard.copies.keep()
  before = _twins(strategy)
  losses.add_one(variables)
  shard = lost.variables[1]
  with tf.device(shard.device):
    tf.raw_ops.DestroyResourceOp(resource=shard.handle)
  handles.renew([shard])  # which has no value then, as on a ps that restarted
  with pytest.raises(tf.errors.OpError):
    strategy.guard.copies.keep()
  on_its_ps = {
    variable.name
    for variable, _ in strategy.guard.copies.replicas.pairs()
    if variable.device == shard.device
  }
  assert len(on_its_ps) > 1
  after = _twins(strategy)
  assert {name: after[name] for name in on_its_ps} == {
    name: before[name] for name in on_its_ps
  }


@pytest.fixture
def strategy(tfps_cluster, tmp_path):
  """A strategy that saves nothing by itself."""
  made = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(tmp_path / 'snapshots', every_secs=3600),
  )
  yield made
  made.close()


@IN_PROCESS
def test_what_is_written_outside_of_functions_is_saved_once(strategy, tmp_path):
  with strategy.scope():
    variables = [tf.Variable(0.0, name=name) for name in 'abc']
  snapshotter = strategy.guard.copies.snapshotter
  saved = tf.train.Checkpoint(v=variables).write(str(tmp_path / 'checkpoint'))
  writes = [
    lambda: variables[0].assign(5.0),
    lambda: variables[1].assign_add(5.0),
    lambda: tf.train.Checkpoint(v=variables).read(saved),
    snapshotter.note_writes,
  ]
  snapshotter.save()
  for number, write in enumerate(writes, 1):
    snapshotter.save()
    assert snapshotter.latest.path.name == f'snapshot-{number:06}'
    write()
    snapshotter.save()
    assert snapshotter.latest.path.name == f'snapshot-{number + 1:06}'


@IN_PROCESS
def test_what_is_written_while_a_snapshot_is_being_written_is_saved(strategy):
  with strategy.scope():
    variable = tf.Variable(0.0)
  snapshotter = strategy.guard.copies.snapshotter
  write = snapshotter._store.write

  def write_slowly(*args):
    variable.assign(5.0)
    write(*args)

  with mock.patch.object(snapshotter._store, 'write', write_slowly):
    snapshotter.save()
  snapshotter.save()
  variable.assign(7.0)
  snapshotter._restore_all('ps:0')
  assert variable.numpy() == 5


@IN_PROCESS
def test_what_was_restored_is_not_saved_again(strategy):
  with strategy.scope():
    kept = tf.Variable(0.0)
  snapshotter = strategy.guard.copies.snapshotter
  snapshotter.save()
  latest = snapshotter.latest
  snapshotter._restore_all('ps:0')
  snapshotter.save()
  assert snapshotter.latest is latest
  del kept


@IN_PROCESS
def test_the_age_of_a_snapshot_of_an_earlier_process_is_known(
  tfps_cluster, tmp_path
):
  strategies = []
  recovery = tfps.Recovery(tmp_path, every_secs=3600)

  def snapshotter():
    strategies.append(
      tfps.ParameterServerStrategy(tfps_cluster.cluster, recovery=recovery)
    )
    with strategies[-1].scope():
      tf.Variable(0.0, name='a')
    return strategies[-1].guard.snapshotter

  first = snapshotter()
  first.save()
  before = time.time() - 1000
  os.utime(first.latest.path / 'contents.json', (before, before))
  assert 1000 <= snapshotter()._restore_all('ps:0') < 2000
  for strategy in strategies:
    strategy.close()


def test_what_a_run_begins_with_is_kept_until_all_variables_are_made(tmp_path):
  recovery = tfps.Recovery(tmp_path, every_secs=3600, max_to_keep=1)
  with testing.InProcessCluster(1, 2) as cluster:
    strategy = tfps.BetweenGraphStrategy(cluster.cluster, recovery=recovery)
    with strategy.scope():
      for name in 'ab':
        tf.Variable(0.0, name=name).assign(5.0)
    strategy.guard.copies.keep()
    strategy.close()
  with testing.InProcessCluster(1, 2) as cluster:
    strategy = tfps.BetweenGraphStrategy(cluster.cluster, recovery=recovery)
    snapshotter = strategy.guard.copies.snapshotter
    with strategy.scope():
      first = tf.Variable(0.0, name='a')
      snapshotter._save_or_log()  # as it is called periodically
      snapshotter.save_at_last()  # as when the process is to end
      assert snapshotter.latest is snapshotter.begun_with
      variables = [first, tf.Variable(0.0, name='b')]
    assert losses.values(variables) == {5}
    snapshotter._save_or_log()
    assert snapshotter.latest is not snapshotter.begun_with
    strategy.close()
