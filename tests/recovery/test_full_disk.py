"""Training outlasts a full disk, and is set back to what was there before."""

import pathlib
import re
import sys
import time

import pytest

from tests import waiting
from tests.recovery import losses
import tfps
from tfps import errors
from tfps import testing
from tfps.testing.chaos import disks

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(bool(disks.problem()), reason=disks.problem()),
]

_PROGRAM = str(pathlib.Path(__file__).parents[1] / 'programs' / 'survive.py')
_FAILED = 'The variables could not be saved'
_PAUSE_SECS = 0.02  # so that there is time between two executions


@pytest.fixture
def disk():
  with testing.small_disk(2**22) as folder:
    yield folder


def cuts(disk):
  """All there is but for drafts that are being written."""
  return {path.name for path in (disk / 'cuts').glob('cut-*')}


def left(disk):
  """All that is there, beside the job's name."""
  return {path.name for path in (disk / 'cuts').iterdir()} - {'job'}


class Plot:
  """A hook that goes on with what is to happen after each execution."""

  def __init__(self, plot):
    self._plot = plot
    self.is_over = False

  def __call__(self, progress):
    if not self.is_over:
      time.sleep(_PAUSE_SECS)
      self.is_over = next(self._plot, 'over') == 'over'


def test_training_by_a_coordinator_goes_on(disk, caplog):
  events = []

  def num_back():
    return sum(event.kind == 'back' for event in events)

  def happens(snapshotter):
    while (
      snapshotter.latest is None
      or snapshotter.latest.path.name < 'snapshot-000003'
    ):
      yield
    with testing.full_disk(disk):
      while caplog.text.count(_FAILED) < 2:
        yield
      before = snapshotter.latest
      assert before.path.name in cuts(disk)
      losses.lose(processes, ('ps', 1))()
      while not num_back():
        yield
      assert 'as they were' in caplog.text
      assert snapshotter.latest == before
      num_failed = caplog.text.count(_FAILED)
      while caplog.text.count(_FAILED) == num_failed:
        yield
    while snapshotter.latest == before:
      yield

  with testing.ProcessCluster(2, 2) as processes:
    strategy = tfps.ParameterServerStrategy(
      processes.cluster,
      recovery=tfps.Recovery(
        disk / 'cuts', every_secs=0.2, on_event=events.append
      ),
    )
    variables = losses.counters(strategy)
    with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
      plot = Plot(happens(strategy.guard.snapshotter))
      losses.count_to(coordinator, variables, 4_000, plot, per_execution=5)
      assert plot.is_over
      assert losses.values(variables) == {4_000}
    assert re.findall(r'draft-.*No space left on device', caplog.text)
  assert left(disk) == cuts(disk)
  assert len(cuts(disk)) == 2


def test_training_between_graphs_goes_on(disk):
  command = [sys.executable, _PROGRAM, 'train', '1800', str(disk / 'cuts')]
  commands = {'worker': [*command, '60', '0', '0']}
  with testing.ProcessCluster(
    2, 2, commands=commands, preload=['tensorflow', 'keras']
  ) as processes:

    def num(what):
      return processes.log('worker', 0).count(what)

    waiting.until(lambda: num('\nat ') > 30, timeout_secs=120)
    with testing.full_disk(disk):
      waiting.until(lambda: num(_FAILED) > 1)
      before = cuts(disk)
      losses.lose(processes, ('ps', 1))()
      waiting.until(lambda: num('ps:1 was lost and is back. All variables'))
      num_failed = num(_FAILED)
      waiting.until(lambda: num(_FAILED) > num_failed)
      assert cuts(disk) == before
    waiting.until(lambda: cuts(disk) - before)
    for index in range(2):
      status = processes.wait('worker', index, timeout_secs=150)
      assert status == 0, processes.log('worker', index)[-3000:]
  assert left(disk) == cuts(disk)


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
    assert caplog.text.count('The last cut could not be made') == 1


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
