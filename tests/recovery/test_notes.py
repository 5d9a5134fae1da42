"""What the ps have been told of one another."""

import pytest
import tensorflow as tf

import tfps
from tfps.recovery import notes

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)


@pytest.fixture
def connected(tfps_cluster):
  return tfps.ParameterServerStrategy(tfps_cluster.cluster)


def test_a_note_is_about_these_very_ps(connected):
  mine = notes.Notes()
  mine.leave({0: 11, 1: 22})
  assert mine.are({0: 11, 1: 22})
  assert not mine.are({0: 11, 1: 23})
  mine.leave({0: 11, 1: 23})
  assert mine.are({0: 11, 1: 23})


def test_a_ps_without_a_note_is_of_another_time(connected):
  mine = notes.Notes()
  mine.leave({0: 1, 1: 2})
  with tf.device('/job:ps/task:1/device:CPU:0'):
    tf.raw_ops.DestroyResourceOp(resource=mine._handle())
  assert not mine.are({0: 1, 1: 2})


def test_the_notes_of_another_job_are_no_notes(connected):
  notes.Notes('one').leave({0: 1, 1: 2})
  assert not notes.Notes('other').are({0: 1, 1: 2})
