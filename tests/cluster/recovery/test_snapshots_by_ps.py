"""Cuts that each ps writes by itself."""

import numpy as np
import pytest
import tensorflow as tf

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
    pytest.param(
      *(tfps.ParameterServerStrategy, partitioners.FixedShards(2), None),
      marks=pytest.mark.exhaustive,
    ),
    pytest.param(
      *(tfps.BetweenGraphStrategy, None, None), marks=pytest.mark.exhaustive
    ),
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
  strategy.guard.copies.keep()
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
  strategy.guard.copies.keep()
  cut = strategy.guard.snapshotter.latest
  for path in cut.path.glob('values.*'):
    path.unlink()
  entry = strategy.guard.snapshotter.inventory.entries()[0]
  with pytest.raises(errors.CheckpointError, match=r'ps:\d cannot read '):
    strategy.guard.snapshotter._restore_entry(entry, cut)
  del kept


def test_a_part_that_the_chief_does_not_see_is_told(tmp_path, set_timeouts):
  set_timeouts(file_visible_secs=0.1)
  missing = tmp_path / 'values.index'
  with pytest.raises(
    snapshot_storage.DiskError,
    match=rf'ps:1 has written {missing}, which the chief does not see.*Mount',
  ):
    snapshot_storage._wait_for(missing, '/job:ps/task:1/device:CPU:0')


@IN_PROCESS
@pytest.mark.parametrize('written_by', ['chief', 'ps'])
def test_a_directory_that_cannot_be_written_is_told(
  tfps_cluster, tmp_path, written_by
):
  (tmp_path / 'file').touch()
  recovery = tfps.Recovery(tmp_path / 'file' / 'x', written_by=written_by)
  with pytest.raises(
    errors.CheckpointError, match=r'/file/x, .* cannot be written: .*\. Make it'
  ):
    tfps.ParameterServerStrategy(tfps_cluster.cluster, recovery=recovery)


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
