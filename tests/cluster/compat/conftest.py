"""What several canaries look at."""

import pytest
import tensorflow as tf

from tfps import testing


@pytest.fixture(scope='module')
def coordinator():
  """TensorFlow's own, of a strategy of TensorFlow's own."""
  with testing.InProcessCluster(num_workers=1, num_ps=1) as servers:
    strategy = tf.distribute.ParameterServerStrategy(servers.cluster.resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    yield coordinator
    coordinator._cluster.stop()
