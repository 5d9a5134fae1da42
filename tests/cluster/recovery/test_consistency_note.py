"""What the ps have been told of one another."""

import contextlib
from unittest import mock

import pytest
import tensorflow as tf

import tfps
from tfps.recovery import consistency_note
from tfps.server import mailbox as mailbox_lib

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)


@pytest.fixture
def connected(tfps_cluster):
  return tfps.ParameterServerStrategy(tfps_cluster.cluster)


def forget(mine, ps):
  with tf.device(f'/job:ps/task:{ps}/device:CPU:0'):
    tf.raw_ops.DestroyResourceOp(
      resource=mine._handle(), ignore_lookup_error=True
    )


def test_a_note_is_about_these_very_ps(connected):
  mine = consistency_note.ConsistencyNotes()
  mine.write({0: 11, 1: 22})
  assert mine.match({0: 11, 1: 22})
  assert not mine.match({0: 11, 1: 23})
  mine.write({0: 11, 1: 23})
  assert mine.match({0: 11, 1: 23})


def test_those_of_before_ones_own_last_do_not_match(connected):
  mine = consistency_note.ConsistencyNotes('lasts')
  mine.write({0: 1, 1: 2})
  mine.write({0: 1, 1: 3})
  consistency_note.ConsistencyNotes('lasts').write({0: 1, 1: 2})
  assert consistency_note.ConsistencyNotes('lasts').match({0: 1, 1: 2})
  assert not mine.match({0: 1, 1: 2})


def test_a_ps_without_a_note_is_of_another_time(connected):
  mine = consistency_note.ConsistencyNotes()
  mine.write({0: 1, 1: 2})
  forget(mine, 1)
  assert not mine.match({0: 1, 1: 2})


def test_the_notes_of_another_job_are_no_notes(connected):
  consistency_note.ConsistencyNotes('one').write({0: 1, 1: 2})
  assert not consistency_note.ConsistencyNotes('other').match({0: 1, 1: 2})


def test_a_ps_whose_note_was_taken_away_is_denied(connected):
  mine = consistency_note.ConsistencyNotes('denied')
  assert not mine.contradict({0: 1, 1: 2})  # there are none yet
  mine.write({0: 1, 1: 2})
  assert not mine.contradict({0: 1, 1: 2})
  assert mine.contradict({0: 1, 1: 3})
  forget(mine, 1)
  assert mine.contradict({0: 1, 1: 2})


class _LostMailbox:
  """Connection to a ps that dies after the first read."""

  def __init__(self, address):
    del address
    self._is_lost = self.is_abandoned = False

  def read(self, about):
    del about
    self._check()
    self._is_lost = True

  def close(self):
    self._check()

  def abandon(self):
    self.is_abandoned = True

  def __enter__(self):
    return self

  def __exit__(self, *exc_info):
    self.close()

  def _check(self):
    if self._is_lost:
      raise tf.errors.UnavailableError(None, None, 'It is lost.')


@pytest.mark.parametrize('leave', [lambda: None, lambda: {}['of the caller']])
def test_a_ps_that_is_lost_after_its_note_was_read_is_let_go_of(leave):
  with (
    mock.patch.object(mailbox_lib, 'Mailbox', _LostMailbox),
    contextlib.suppress(KeyError),
    consistency_note.NoteReader() as reader,
  ):
    assert reader.read('h:1') is None
    mailbox = reader._mailbox
    leave()
  assert mailbox.is_abandoned


@pytest.mark.parametrize('address', ['h:1', 'h:2'])
def test_a_note_is_read_from_a_ps_that_restarted_or_another_one(address):
  with (
    mock.patch.object(mailbox_lib, 'Mailbox', _LostMailbox),
    consistency_note.NoteReader() as reader,
  ):
    assert reader.read('h:1') is None
    with pytest.raises(tf.errors.UnavailableError):
      reader.read('h:1')
    assert reader.read(address) is None


@pytest.mark.tfps_cluster(workers=1, ps=2, processes=True)
def test_a_note_is_read_without_the_eager_runtime(connected, tfps_cluster):
  mine, first = consistency_note.ConsistencyNotes(), tfps.Task('ps', 0)
  forget(mine, 0)
  with consistency_note.NoteReader() as reader:

    def read():
      return reader.read(tfps_cluster.cluster.address(first))

    assert read() is None
    mine.write({0: 11, 1: 22})
    assert read() == {0: 11, 1: 22}
    mine.write({0: 33, 1: 22})
    assert read() == {0: 33, 1: 22}
    reader.close()
    assert read() == {0: 33, 1: 22}
