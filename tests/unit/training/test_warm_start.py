"""What a warm start cannot do is told before a variable is changed."""

import numpy as np
import pytest
import tensorflow as tf

import tfps


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
