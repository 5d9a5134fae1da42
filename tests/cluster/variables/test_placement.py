"""Strategies tell a placement their cluster."""

import pytest
import tensorflow as tf

import tfps
from tfps.variables import placement


@pytest.mark.tfps_cluster(workers=2, ps=2)
@pytest.mark.parametrize(
  'make_strategy',
  [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
  ids=['coordinator', 'between-graph'],
)
def test_strategies_tell_a_placement_their_cluster(tfps_cluster, make_strategy):
  hosts = {'ps:1': 'a', 'worker:0': 'a', 'worker:1': 'a'}
  policy = placement.TopologyAware(hosts)
  strategy = make_strategy(tfps_cluster.cluster, placement=policy)
  with strategy.scope():
    for name in ('first', 'second'):
      tf.Variable(tf.zeros([10]), name=f'aware_{name}')
  report = strategy.placement_report()
  assert [n for n in report.variables[0] if 'aware' in n] == []
  assert len([n for n in report.variables[1] if 'aware' in n]) == 2
  assert 'busiest link' in str(report) or not report.links
