"""Cuts that each ps writes by itself."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.recovery import losses
from tests.recovery import on_hosts
import tfps
from tfps import errors
from tfps import testing
from tfps.recovery import snapshot_storage
from tfps.variables import partitioners

IN_PROCESS = pytest.mark.tfps_cluster(workers=1, ps=2)
TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)


def _recovery(directory):
  return tfps.Recovery(directory, every_secs=3600, written_by='ps')


def _variables(strategy, scale):
  with strategy.scope():
    return [
      tf.Variable(scale * TABLE, name='table'),
      tf.Variable(scale * 3, dtype=tf.int64, name='count', trainable=False),
      tf.Variable(b'a' * scale, name='word', trainable=False),
    ]


def _names(directory):
  """Of all that is there, but the job's."""
  return sorted({path.name for path in directory.iterdir()} - {'job'})


@IN_PROCESS
@pytest.mark.parametrize(
  ('kind', 'before', 'after'),
  [
    (tfps.ParameterServerStrategy, None, partitioners.FixedShards(3)),
    (tfps.ParameterServerStrategy, partitioners.FixedShards(2), None),
    (tfps.BetweenGraphStrategy, None, None),
    (
      tfps.BetweenGraphStrategy,
      partitioners.FixedShards(2),
      partitioners.FixedShards(3),
    ),
  ],
)
def test_other_ps_begin_with_a_cut_however_it_is_cut_up(
  tfps_cluster, tmp_path, kind, before, after
):
  strategy = kind(tfps_cluster.cluster, before, recovery=_recovery(tmp_path))
  kept = _variables(strategy, scale=5)
  strategy.guard.keep()
  strategy.close()
  assert _names(tmp_path) == ['snapshot-000001']
  with testing.InProcessCluster(num_workers=1, num_ps=3) as cluster:
    strategy = kind(cluster.cluster, after, recovery=_recovery(tmp_path))
    table, count, word = _variables(strategy, scale=1)
    np.testing.assert_array_equal(table.numpy(), 5 * TABLE)
    assert (count.numpy(), word.numpy()) == (15, b'aaaaa')
    strategy.close()
  del kept


@IN_PROCESS
def test_a_part_that_cannot_be_read_is_an_error(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=_recovery(tmp_path)
  )
  kept = _variables(strategy, scale=5)
  strategy.guard.keep()
  cut = strategy.guard.snapshotter.latest
  for path in cut.path.glob('values.*'):
    path.unlink()
  entry = strategy.guard.snapshotter.inventory.entries()[0]
  with pytest.raises(errors.CheckpointError, match=r'ps:\d cannot read '):
    strategy.guard.snapshotter._put_back(entry, cut)
  del kept


@IN_PROCESS
def test_a_part_that_cannot_be_written_leaves_the_cut_before(
  tfps_cluster, tmp_path
):
  directory = tmp_path / 'cuts'
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=_recovery(directory)
  )
  kept = _variables(strategy, scale=5)
  snapshotter = strategy.guard.snapshotter
  snapshotter.save()
  first = snapshotter.latest
  groups = snapshotter._reader.read(snapshotter.inventory.entries())
  missing = directory / 'missing' / 'draft'
  with pytest.raises(
    snapshot_storage.DiskError, match=rf'ps:\d cannot write {missing}'
  ):
    snapshotter._store._disk.write(missing, groups)
  assert snapshotter.latest is first
  del kept


@pytest.mark.parametrize('value', ['worker', None])
def test_others_do_not_write(value):
  with pytest.raises(ValueError, match='written_by='):
    tfps.Recovery('x', written_by=value)


@pytest.mark.tfps_cluster(workers=2, ps=2, processes=True)
@pytest.mark.slow
def test_a_ps_that_is_lost_as_it_writes_leaves_the_cut_before(
  tfps_cluster, tmp_path
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=_recovery(tmp_path)
  )
  variables = losses.counters(strategy)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    before = _names(tmp_path)
    coordinator.schedule(tf.function(lambda: losses.add_one(variables)))
    coordinator.join()
    assert losses.lose_within(
      tfps_cluster, ('ps', 1), strategy.guard.snapshotter.save_quiesced
    )
    lost = [v for v in variables if '/task:1/' in v.device]
    assert losses.values(lost) == {50}  # for which this waits
    assert losses.values(variables) == {50}
    assert _names(tmp_path) == before
    losses.count_to(coordinator, variables, 60)
    assert losses.values(variables) == {60}
    assert _names(tmp_path)[-1] > before[-1]


def _can_mount():
  command = ['unshare', '--mount', 'mount', '-t', 'tmpfs', 'none', '/mnt']
  try:
    return subprocess.run(command, capture_output=True).returncode == 0
  except FileNotFoundError:
    return False


@pytest.mark.skipif(not _can_mount(), reason='Other disks take root.')
@pytest.mark.slow
def test_a_disk_that_a_ps_has_for_itself_is_an_error(tmp_path):
  own = 'mount -t tmpfs none "$0" && exec "$@"'
  command = ['unshare', '--mount', 'sh', '-c', own, str(tmp_path)]
  with (
    testing.ProcessCluster(
      1, 1, commands={'ps': [*command, sys.executable, '-m', 'tfps.server']}
    ) as cluster,
    pytest.raises(
      errors.CheckpointError,
      match=rf'ps:0 cannot use {tmp_path}.*disk that the chief and all ps',
    ),
  ):
    tfps.ParameterServerStrategy(cluster.cluster, recovery=_recovery(tmp_path))
  assert _names(tmp_path) == []


@on_hosts.needs_network
@pytest.mark.slow
@on_hosts.strategies
def test_values_do_not_go_through_the_chief(strategy, tmp_path):
  chief, ps = on_hosts.keep(strategy, tmp_path, 1, 'cuts')
  assert _names(tmp_path / 'cuts') == ['snapshot-000001']
  # Of the value that it makes.
  assert max(each.received for each in ps) > on_hosts.NUM_BYTES
  assert chief.received < on_hosts.NUM_BYTES / 2
