"""What a warm start cannot do is told before a variable is changed."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps._compat import tensor_bundle
from tfps.variables import row_writes


def _root():
  return tf.train.Checkpoint(table=tf.Variable(tf.zeros([3, 2]), name='table'))


def _vocabulary(old, new):
  def start(path, root):
    tfps.checkpoints.warm_start(
      path,
      root,
      vocabularies=[tfps.checkpoints.Vocabulary(root.table, old, new)],
    )

  return start


def _cut(path):
  path.write_bytes(path.read_bytes()[:-10])


def _flip(path):
  data = bytearray(path.read_bytes())
  data[100] ^= 255
  path.write_bytes(data)


@pytest.mark.parametrize(
  ('name', 'damage'),
  [
    ('index', _cut),
    ('data-00000-of-00001', _cut),
    ('data-00000-of-00001', _flip),
    ('data-00000-of-00001', pathlib.Path.unlink),
  ],
)
def test_a_damaged_checkpoint_is_told(tmp_path, name, damage):
  path = _root().write(str(tmp_path / 'old'))
  damage(tmp_path / f'old.{name}')
  with pytest.raises(
    tfps.CheckpointError, match=r'/old cannot be read: .*\. Copy it again'
  ):
    tfps.checkpoints.warm_start(path, _root())


def test_a_large_table_that_is_cut_off_is_told(tmp_path, monkeypatch):
  monkeypatch.setattr(row_writes, 'SLICE_BYTES', 8)
  root = _root()
  path = root.write(str(tmp_path / 'old'))
  theirs = tensor_bundle.Reader.slices

  def slices(reader, *args):
    (tmp_path / 'old.data-00000-of-00001').write_bytes(b'')
    return theirs(reader, *args)

  monkeypatch.setattr(tensor_bundle.Reader, 'slices', slices)
  with pytest.raises(
    tfps.CheckpointError, match=r'/old: table/.* is cut off\. Copy it again'
  ):
    tfps.checkpoints.warm_start(path, root)


@pytest.mark.parametrize(
  ('start', 'error', 'message'),
  [
    (
      _vocabulary(['a', 'b', 'c', 'd'], ['a']),
      ValueError,
      'table: the old one has 4 tokens, and the table has 3 rows',
    ),
    (_vocabulary(['a'], ['b', 'b']), ValueError, "'b' more than once"),
    (
      _vocabulary(['a', 'b'], ['c']),
      ValueError,
      r'none of the 2 old tokens \(a, b\) is among the 1 new ones \(c\)',
    ),
    (
      lambda path, root: tfps.checkpoints.warm_start(
        path,
        root,
        vocabularies=[tfps.checkpoints.Vocabulary(tf.Variable(0), 'a', 'b')],
      ),
      ValueError,
      'has no value for it',
    ),
    (
      lambda path, root: tfps.checkpoints.warm_start(path + '-2', root),
      tfps.CheckpointError,
      'old-2: there is no checkpoint',
    ),
    (
      lambda path, root: tfps.checkpoints.warm_start(path, tf.Module()),
      tfps.CheckpointError,
      'build models',
    ),
    (
      lambda path, root: tfps.checkpoints.warm_start(path, [root]),
      ValueError,
      'is not trackable',
    ),
  ],
)
def test_bad_input_is_told(tmp_path, start, error, message):
  path = _root().write(str(tmp_path / 'old'))
  root = _root()
  root.table.assign(tf.ones([3, 2]))
  with pytest.raises(error, match=message):
    start(path, root)
  np.testing.assert_array_equal(root.table, np.ones([3, 2]))
