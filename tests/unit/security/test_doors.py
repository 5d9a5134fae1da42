"""Doors of an enclosure: which it needs, and which it cannot have."""

import socket

import pytest

from tests.support import enclosures
import tfps
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.security import config
from tfps.security import doors
from tfps.security import proxy

_JOBS = {
  'ps': ['127.0.0.1:4000', '127.0.0.2:4001'],
  'worker': ['localhost:4002'],
}


def _plan(task, env=(), jobs=_JOBS):
  return doors.Plan.of(tfps.Cluster(jobs, task), dict(env))


def _names(places):
  return [(place.name, place.ip, place.port) for place in places]


def test_a_task_is_served_and_calls_all_others():
  plan = _plan(enclosures.PS)
  assert _names(plan.served) == [('ps:0', '127.0.0.1', 4000)]
  assert _names(plan.peers.values()) == [
    ('ps:1', '127.0.0.2', 4001),
    ('worker:0', '127.0.0.1', 4002),
  ]
  assert plan.hosts() is None


@pytest.mark.parametrize('task', [enclosures.OBSERVER, None])
def test_a_task_without_a_server_only_calls(task):
  plan = _plan(task)
  assert plan.served == ()
  assert len(plan.peers) == 3


def test_metrics_are_served():
  plan = _plan(enclosures.PS, {'TFPS_METRICS_PORT': '0.0.0.0:9400'})
  assert _names(plan.served)[1] == ('metrics', '0.0.0.0', 9400)


def test_ipv6_hosts_have_their_addresses_within():
  jobs = {'ps': ['[FD00:0::1]:4000'], 'worker': ['[::1]:4000']}
  plan = _plan(enclosures.WORKER, {'TFPS_METRICS_PORT': '[::]:9400'}, jobs)
  assert _names(plan.peers.values()) == [('ps:0', 'fd00::1', 4000)]
  assert _names(plan.served) == [
    ('worker:0', '::1', 4000),
    ('metrics', '::', 9400),
  ]
  assert plan.named() == []


def test_the_page_is_served():
  plan = _plan(enclosures.PS, {'TFPS_DASHBOARD_PORT': '127.0.0.1:9500'})
  assert _names(plan.served)[1] == ('page', '127.0.0.1', 9500)


def test_names_of_hosts_are_known_within():
  name = socket.gethostname()
  jobs = {'ps': [f'{name}:4000'], 'worker': ['localhost:4001']}
  plan = _plan(enclosures.WORKER, jobs=jobs)
  assert plan.hosts() == f'{plan.peers[enclosures.PS].ip} {name}\n'


def test_each_name_is_an_address_of_its_own_within():
  jobs = {
    'ps': ['a.example:4000', 'b.example:4000', 'a.example:4001'],
    'worker': ['127.0.0.1:4000', 'localhost:4001'],
  }
  plan = _plan(enclosures.WORKER, {'TFPS_METRICS_PORT': 'b.example:4002'}, jobs)
  ps = [plan.peers[spec_lib.Task('ps', i)] for i in range(3)]
  assert len({ps[0].ip, ps[1].ip, '127.0.0.1'}) == 3
  assert ps[2].ip == ps[0].ip
  assert _names(plan.named()) == [
    ('metrics', ps[1].ip, 4002),
    *_names(ps),
  ]
  assert plan.hosts() == f'{ps[1].ip} b.example\n{ps[0].ip} a.example\n'


@pytest.mark.parametrize(
  ('ps', 'complaint'),
  [
    ('localhost:4002', 'worker:0 and ps:0 have the same port, 4002'),
    ('127.0.0.2:9400', 'metrics and ps:0 have the same port, 9400'),
    ('127.0.0.1:0', 'nothing leads to a port that is not known'),
  ],
)
def test_what_cannot_be_is_named(ps, complaint):
  jobs = {'ps': [ps], 'worker': ['127.0.0.1:4002']}
  env = {'TFPS_METRICS_PORT': '9400'}
  with pytest.raises(ValueError, match=complaint):
    _plan(enclosures.WORKER, env, jobs)


@pytest.mark.parametrize(
  ('ps', 'env'),
  [
    ('127.0.0.2:4001', {}),
    ('127.0.0.2:4002', {'TF_GRPC_REUSE_PORT': 'true'}),
  ],
)
def test_a_server_may_have_the_port_of_others_on_other_hosts(ps, env):
  jobs = {'ps': [ps], 'worker': ['127.0.0.1:4002']}
  assert _plan(enclosures.WORKER, jobs=jobs).env() == env


@pytest.mark.parametrize(
  ('host', 'ip', 'where'),
  [
    ('localhost', '127.0.0.1', r'127\.0\.0\.1'),
    ('[::1]', '::1', r'\[::1\]'),
    ('h.example', '127.77.0.1', r'\[::\]'),
  ],
)
def test_a_port_in_use_is_named(host, ip, where):
  place = doors.Place('ps:0', host, ip, ports.pick())
  with (
    place.listen(outside=True),
    pytest.raises(ValueError, match=f'ps:0 cannot be served at {where}.* use'),
  ):
    place.listen(outside=True)


@pytest.mark.parametrize('ip', ['127.0.0.1', '::1'])
def test_a_named_host_is_served_at_all_its_addresses(ip):
  place = doors.Place('ps:0', 'h.example', '127.77.0.1', ports.pick())
  with (
    place.listen(outside=True) as listener,
    socket.create_connection((ip, place.port)),
  ):
    listener.accept()[0].close()


def test_each_peer_is_verified_by_its_own_name():
  text = proxy.configuration(
    [
      proxy.Door('ps:1', 5, 'h:1', spec_lib.Task('ps', 1)),
      proxy.Door('worker:0', 6, '127.0.0.1:2'),
      proxy.Door('ps:2', 8, '', spec_lib.Task('ps', 2)),
    ],
    config.Security("it's ca", 'cert', 'key'),
    '/proc/self/fd/7',
    9,
  )
  assert 'verifyhost ps-1.tfps' in text
  assert 'verifyhost ps-2.tfps' in text
  assert text.count('verify required ssl-min-ver TLSv1.3') == 3
  assert text.count(' disabled ') == 1
  assert r"ca-file 'it'\''s ca'" in text
