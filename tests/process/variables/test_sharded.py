"""Sharded variables on ps."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfps.server import local_pool
from tfps.strategies import parameter_server as parameter_server_lib
from tfps.variables import partitioners
from tfps.variables import sharded

ROWS, COLUMNS = 10, 3
VALUES = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
DISORDER = [9, 0, 4, 4, 3, 9, 1]


@pytest.fixture(scope='module')
def ps_strategy():
  with local_pool.LocalCluster(num_workers=1, num_ps=3) as local:
    yield parameter_server_lib.ParameterServerStrategy(
      local.cluster, partitioners.FixedShards(3)
    )


class Lookup(tf.Module):
  def __init__(self, table):
    super().__init__()
    self.table = table

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
  def rows(self, ids):
    return tf.nn.embedding_lookup(self.table, ids)

  @tf.function(input_signature=[])
  def total(self):
    return tf.reduce_sum(tf.convert_to_tensor(self.table))


READ_WITHOUT_TFPS = f"""
import sys
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
rows = model.rows(tf.constant({DISORDER}, tf.int64))
np.save(sys.argv[2], rows)
signature = model.signatures['serving_default']
np.testing.assert_array_equal(list(signature(
    ids=tf.constant({DISORDER}, tf.int64)).values())[0], rows)
np.testing.assert_array_equal(model.total(), {VALUES.sum()})
assert 'tfps' not in sys.modules
"""


@pytest.mark.exhaustive
def test_a_saved_model_needs_no_tfps(ps_strategy, tmp_path):
  with ps_strategy.scope():
    table = tf.Variable(VALUES)
  assert len(table.variables) == 3
  model = Lookup(table)
  tf.saved_model.save(model, str(tmp_path / 'm'), signatures=model.rows)
  found = pathlib.Path(tmp_path / 'rows.npy')
  subprocess.run(
    [sys.executable, '-c', READ_WITHOUT_TFPS, tmp_path / 'm', found],
    check=True,
    timeout=120,
    cwd=tmp_path,
  )
  np.testing.assert_array_equal(np.load(found), VALUES[DISORDER])
  np.testing.assert_array_equal(
    table.sparse_read(tf.constant(DISORDER)), VALUES[DISORDER]
  )


def test_each_shard_has_a_ps(ps_strategy):
  with ps_strategy.scope():
    table = tf.Variable(VALUES)
  assert isinstance(table, sharded.ShardedVariable)
  tasks = [tf.DeviceSpec.from_string(device).task for device in table.devices]
  assert sorted(tasks) == [0, 1, 2]


def test_a_lookup_reads_rows_of_each_shard_and_no_shard_as_a_whole(ps_strategy):
  with ps_strategy.scope():
    table = tf.Variable(VALUES)
  lookup = tf.function(table.sparse_read).get_concrete_function(
    tf.TensorSpec([None], tf.int64)
  )
  types = [op.type for op in lookup.graph.get_operations()]
  assert types.count('ResourceGather') == 3
  assert 'ReadVariableOp' not in types
