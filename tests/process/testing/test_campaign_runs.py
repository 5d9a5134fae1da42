"""Campaigns on clusters of processes."""

import random

from absl import flags
import pytest

from tfps.testing.chaos import campaign
from tfps.testing.chaos import disks


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'mode',
  ['coordinator', 'between_graph'],
)
def test_training_outlasts_the_loss_of_a_ps(mode, monkeypatch):
  flags.FLAGS.unparse_flags()
  flags.FLAGS(['campaign', '--steps=300', '--every_secs=0.5'])
  found = campaign.run('kill', 'ps', mode, random.Random(1))
  assert found.completed, found
  # Between graphs, each of three may have an execution of five steps cut short
  # by the loss, and again by the repair.
  assert found.doubled <= (0 if mode == 'coordinator' else 30)
  assert 0 < found.pause_secs < 60


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
def test_training_does_not_wait_for_a_disk_that_is_full():
  flags.FLAGS.unparse_flags()
  flags.FLAGS(['campaign', '--steps=500', '--every_secs=0.5', '--for_secs=1,2'])
  found = campaign.run('fill', 'chief', 'fit', random.Random(1))
  assert found.completed, found
  assert found.lost == 0
