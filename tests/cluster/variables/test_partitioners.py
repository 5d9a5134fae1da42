"""TensorFlow's own strategy with our partitioners."""

import tensorflow as tf

from tfps.server import local_pool
from tfps.variables import partitioners


def test_serves_tensorflows_strategy():
  with local_pool.LocalCluster(num_workers=1, num_ps=2) as local:
    strategy = tf.distribute.ParameterServerStrategy(
      local.cluster.resolver(), partitioners.MaxSize(80)
    )
    with strategy.scope():
      table = tf.Variable(tf.zeros([9, 4]))
      bias = tf.Variable(tf.zeros([4]))
    assert [shard.shape for shard in table.variables] == [[5, 4], [4, 4]]
    assert bias.shape == [4]
