"""What goes on in the background ends before this process connects anew."""

import pytest
import tensorflow as tf

import tfps
from tfps import testing
from tfps.server import connection


class Activity:
  """Goes on until it is stopped."""

  def __init__(self):
    self.is_stopped = False

  def stop(self):
    self.is_stopped = True


@pytest.mark.parametrize(
  'connect',
  [
    lambda cluster: tfps.ParameterServerStrategy(cluster),
    lambda cluster: tfps.BetweenGraphStrategy(cluster),
    lambda cluster: tf.distribute.ParameterServerStrategy(cluster.resolver()),
  ],
  ids=['coordinator', 'between graphs', 'stock'],
)
def test_activities_end_before_the_next_connection(connect):
  activity = Activity()
  with testing.InProcessCluster(num_workers=1, num_ps=1) as cluster:
    tfps.ParameterServerStrategy(cluster.cluster)
    connection.stop_before_next(activity.stop)
  with testing.InProcessCluster(num_workers=1, num_ps=2) as cluster:
    connect(cluster.cluster)
  assert activity.is_stopped
