"""Canaries for what `tfps._compat.eager_writes` relies upon."""

import pytest
import tensorflow as tf

from tfps._compat import eager_writes

RESTORES = {
  'read': lambda path, v: tf.train.Checkpoint(v=v).read(path),
  'as the variable is made': lambda path, v: _make(path),
  'restore': lambda path, v: tf.train.Checkpoint(v=v).restore(path),
}


def _make(path):
  checkpoint = tf.train.Checkpoint()
  checkpoint.read(path)
  checkpoint.v = tf.Variable(0.0)


@pytest.mark.parametrize('restore', RESTORES)
def test_the_restore_of_a_checkpoint_is_noted(restore, tmp_path):
  variable = tf.Variable(1.0)
  path = tf.train.Checkpoint(v=variable).write(str(tmp_path / 'it'))
  all_writes = [eager_writes.EagerWrites(), eager_writes.EagerWrites()]
  RESTORES[restore](path, variable)
  assert all(writes.last for writes in all_writes)


def test_each_write_has_another_number_but_those_left_out():
  writes = eager_writes.EagerWrites()
  found = {writes.last}
  for _ in range(2):
    writes.note()
    found.add(writes.last)
  assert len(found) == 3
  with writes.left_out():
    writes.note()
  assert writes.last in found
