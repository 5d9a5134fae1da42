"""Snapshots on a disk that is full: training goes on without them."""

import pytest

from tests.support import losses
import tfps
from tfps import errors
from tfps import testing
from tfps.testing.chaos import disks

pytestmark = pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())

_FAILED = 'The variables could not be saved'


@pytest.fixture
def disk():
  with testing.small_disk(2**22) as folder:
    yield folder


def cuts(disk):
  """All there is but for drafts that are being written."""
  return {path.name for path in (disk / 'cuts').glob('snapshot-*')}


def left(disk):
  """All that is there, beside the job's name."""
  return {path.name for path in (disk / 'cuts').iterdir()} - {'job'}


def test_training_ends_although_what_it_has_done_cannot_be_kept(disk, caplog):
  with testing.InProcessCluster(1, 1) as cluster:
    strategy = tfps.ParameterServerStrategy(
      cluster.cluster,
      recovery=tfps.Recovery(disk / 'cuts', every_secs=3600),
    )
    variables = losses.counters(strategy)
    with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
      losses.count_to(coordinator, variables, 10)
      before = cuts(disk)
      with testing.full_disk(disk):
        losses.count_to(coordinator, variables, 20)
        assert losses.values(variables) == {20}
        strategy.guard.snapshotter.save_at_last()
        assert cuts(disk) == before
    assert caplog.text.count(_FAILED) == 1
    assert caplog.text.count('The last snapshot could not be written') == 1


def test_nothing_begins_where_nothing_can_be_kept(disk):
  def begin():
    return tfps.ParameterServerStrategy(
      cluster.cluster, recovery=tfps.Recovery(disk / 'cuts')
    )

  with testing.InProcessCluster(1, 1) as cluster:
    with (
      testing.full_disk(disk),
      pytest.raises(
        errors.CheckpointError, match=rf'{disk}/cuts, where.*No space left'
      ),
    ):
      begin()
    assert left(disk) == set()
    losses.counters(begin())
