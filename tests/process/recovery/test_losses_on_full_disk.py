"""A ps that is lost while the disk is full has what was there before."""

import re

import pytest

from tests.support import losses
from tests.support import waiting
import tfps
from tfps import testing
from tfps.testing.chaos import disks

pytestmark = [
  pytest.mark.skipif(bool(disks.problem()), reason=disks.problem()),
]

_FAILED = 'The variables could not be saved'


def cuts(folder):
  """The names of all snapshots, without drafts that are being written."""
  return {path.name for path in folder.glob('snapshot-*')}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'kind',
  [
    tfps.ParameterServerStrategy,
    tfps.BetweenGraphStrategy,
  ],
)
def test_training_goes_on(caplog, kind):
  events = losses.Events()

  def wait_for_failures(number):
    wanted = caplog.text.count(_FAILED) + number
    waiting.until(lambda: caplog.text.count(_FAILED) >= wanted)

  def fill_and_lose():
    waiting.until(lambda: len(cuts(folder)) == 2)
    with testing.full_disk(disk):
      wait_for_failures(2)
      before = cuts(folder)
      losses.lose(processes, ('ps', 1))()
      events.wait_for('back', 'ps:1', after=[0])
      assert 'as they were' in caplog.text
      wait_for_failures(1)
      assert cuts(folder) == before
    waiting.until(lambda: cuts(folder) - before)

  with (
    testing.small_disk(2**22) as disk,
    testing.ProcessCluster(2, 2) as processes,
  ):
    folder = disk / 'cuts'
    strategy = kind(
      processes.cluster,
      recovery=tfps.Recovery(folder, every_secs=0.2, on_event=events),
    )
    variables = losses.counters(strategy)
    with losses.trainer(strategy) as trainer:
      steps = losses.train_while(
        trainer, lambda batch: losses.add_one(variables), fill_and_lose
      )
      assert trainer.surviving(lambda: losses.values(variables)) == {steps}
    assert re.findall(r'draft-.*No space left on device', caplog.text)
    assert {path.name for path in folder.iterdir()} - {'job'} == cuts(folder)
    assert len(cuts(folder)) == 2
