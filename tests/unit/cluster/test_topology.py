import pytest

from tfps.cluster import spec as spec_lib
from tfps.cluster import topology

_PS0, _PS1 = spec_lib.Task('ps', 0), spec_lib.Task('ps', 1)
_WORKER0 = spec_lib.Task('worker', 0)
_CLUSTER = spec_lib.Cluster(
  {'ps': ['A:1', 'b:1'], 'worker': ['a:2', 'b:2', 'c:2']}
)


def _names(path):
  return [str(link) for link in path]


def test_hosts_are_those_of_the_addresses():
  found = topology.Topology.of(_CLUSTER)
  assert found.hosts[_PS0] == found.hosts[_WORKER0] == 'a'
  assert found.path(_PS0, _WORKER0) == ()
  assert _names(found.path(_PS1, _WORKER0)) == ['host b, up', 'host a, down']


def test_hosts_can_be_given():
  found = topology.Topology.of(_CLUSTER, {'worker:0': 'b'})
  assert found.path(_PS1, _WORKER0) == ()
  assert found.path(_PS0, _WORKER0)


def test_racks_have_links_of_their_own():
  found = topology.Topology.of(_CLUSTER, rack_of={'a': 'x', 'b': 'y', 'c': 'y'})
  assert _names(found.path(_PS1, _WORKER0)) == [
    'host b, up',
    'rack y, up',
    'rack x, down',
    'host a, down',
  ]
  other = spec_lib.Task('worker', 2)
  assert _names(found.path(_PS1, other)) == ['host b, up', 'host c, down']


@pytest.mark.parametrize(
  ('host_of', 'rack_of', 'message'),
  [
    ({'ps:7': 'a'}, None, "host_of: 'ps:7' is not in the cluster"),
    (None, {'a': 'x'}, "rack_of: host 'b' is in no rack"),
  ],
)
def test_what_does_not_fit_is_refused(host_of, rack_of, message):
  with pytest.raises(ValueError, match=message):
    topology.Topology.of(_CLUSTER, host_of, rack_of)


def test_links_carry_what_every_worker_pulls_and_pushes():
  loads = topology.Loads(topology.Topology.of(_CLUSTER))
  found = {str(link): n for link, n in loads.of([100, 10]).items()}
  assert found == {
    # Of ps:0, two workers are elsewhere; worker:0 has ps:1 elsewhere.
    'host a, up': 2 * 100 + 10,
    'host a, down': 2 * 100 + 10,
    'host b, up': 2 * 10 + 100,
    'host b, down': 2 * 10 + 100,
    'host c, up': 110,
    'host c, down': 110,
  }
