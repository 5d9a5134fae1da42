"""Checkpoints that cannot be written leave those before them, and no more."""

import json
import os

import pytest
import tensorflow as tf

from tfps import errors
from tfps import testing
from tfps.cluster import spec as spec_lib
from tfps.testing.chaos import disks
from tfps.training import checkpoints
from tfps.training import end_marker
from tfps.training import training_end

_CHIEF = spec_lib.Task('chief', 0)
_PAGE = os.sysconf('SC_PAGE_SIZE')
_needs_disk = pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())


@pytest.fixture
def disk():
  with testing.small_disk(64 * _PAGE) as folder:
    yield folder


class Training:
  """A variable that is saved, and which step it is at."""

  def __init__(self, directory):
    self.value = tf.Variable(0)
    self._step = tf.Variable(0, dtype=tf.int64)
    self._checkpoints = checkpoints.Checkpoints(
      checkpoints.Saving(
        checkpoint=tf.train.Checkpoint(value=self.value),
        directory=directory,
        options=tf.train.CheckpointOptions(
          experimental_io_device='/device:CPU:0'
        ),
      ),
      self._step,
      task=_CHIEF,
    )

  def save(self, step):
    self.value.assign(step)
    self._step.assign(step)
    self._checkpoints.save(step, 0.0)

  def restore(self):
    self._checkpoints.restore()
    return self.value.numpy()


def names(directory):
  return sorted(path.name for path in directory.iterdir())


def leave(disk, num_pages):
  """Takes all room but for some pages."""
  free = os.statvfs(disk).f_bavail * _PAGE
  (disk / 'ballast').write_bytes(bytes(free - num_pages * _PAGE))


@_needs_disk
@pytest.mark.parametrize('num_pages', range(3))
def test_what_there_is_no_room_for_leaves_nothing(disk, num_pages):
  """Its values, its index and the state have a page each, or a draft has."""
  directory = disk / 'checkpoints'
  Training(directory).save(10)
  before = names(directory)
  leave(disk, num_pages)
  with pytest.raises(
    errors.CheckpointError, match=rf'{directory}: step 20 .*; No space left'
  ):
    Training(directory).save(20)
  assert names(directory) == before
  assert Training(directory).restore() == 10
  (disk / 'ballast').unlink()
  Training(directory).save(20)
  assert Training(directory).restore() == 20


@_needs_disk
def test_the_first_is_saved_once_there_is_room(disk):
  training = Training(disk / 'checkpoints')
  leave(disk, 2)
  with pytest.raises(errors.CheckpointError, match='could not be saved'):
    training.save(10)
  (disk / 'ballast').unlink()
  training.save(10)
  assert Training(disk / 'checkpoints').restore() == 10


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
  (tmp_path / 'file').write_text('')
  directory = tmp_path / 'file' / 'checkpoints'
  with pytest.raises(errors.CheckpointError, match=f'{directory} could not'):
    Training(directory).save(10)


def test_values_that_the_state_cannot_name_are_not_left(tmp_path):
  training = Training(tmp_path)
  (tmp_path / 'checkpoint' / 'in the way').mkdir(parents=True)
  with pytest.raises(errors.CheckpointError, match=f'{tmp_path}: step 10 '):
    training.save(10)
  assert names(tmp_path) == ['checkpoint']


@pytest.fixture(params=['local', 'store'])
def directory(request, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  local = str(tmp_path / 'a b' / 'b')
  return {'local': local, 'store': f'ram:/{local}'}[request.param]


def test_a_state_that_is_missing_is_told_anywhere(directory):
  assert Training(directory).restore() == 0
  Training(directory).save(10)
  assert Training(directory).restore() == 10
  tf.io.gfile.remove(os.path.join(directory, 'checkpoint'))
  with pytest.raises(errors.CheckpointError) as caught:
    Training(directory).restore()
  assert f'{directory}/checkpoint does not name' in str(caught.value)
  assert 'there are ckpt-10.' in str(caught.value)


def test_what_could_not_be_written_is_removed_anywhere(directory):
  Training(directory).save(10)
  before = tf.io.gfile.listdir(directory)

  def fill():
    for name in ('ckpt-200.index', 'ckpt-20.index', 'ckpt-20_temp/part/x'):
      path = os.path.join(directory, name)
      tf.io.gfile.makedirs(os.path.dirname(path))
      with tf.io.gfile.GFile(path, 'w') as file:
        file.write('x')
    raise tf.errors.ResourceExhaustedError(None, None, f'{directory}: full')

  with (
    pytest.raises(errors.CheckpointError, match='step 20 could not be saved'),
    checkpoints._writing(directory, 20),
  ):
    fill()
  found = tf.io.gfile.listdir(directory)
  assert sorted(found) == sorted([*before, 'ckpt-200.index'])


def test_the_end_is_marked_anywhere(directory, tmp_path):
  for number in (3, 4):
    end_marker.mark(directory, number)
    with tf.io.gfile.GFile(os.path.join(directory, training_end.NAME)) as file:
      assert json.load(file)['step'] == number
  assert tf.io.gfile.listdir(directory) == [training_end.NAME]
  for _ in range(2):
    end_marker.clear(directory)
  assert not tf.io.gfile.exists(os.path.join(directory, training_end.NAME))
  assert set(names(tmp_path)) <= {'a b'}


def test_what_is_not_about_files_stays_what_it_is(tmp_path):
  lost = tf.errors.UnavailableError(None, None, 'remote target /job:ps')

  with (
    pytest.raises(tf.errors.UnavailableError),
    checkpoints._writing(str(tmp_path), 10),
  ):
    raise lost
