import socket

import pytest

import tfps
from tfps.cluster.spec import Task
from tfps.server import health

_PS = Task('ps', 0)


def test_a_probe_tells_the_incarnation(ps_server):
  first, second = (health.probe(_PS, ps_server.address) for _ in range(2))
  assert first.state is health.State.ALIVE
  assert first.incarnation == second.incarnation != 0


def test_a_probe_tells_another_task(ps_server):
  status = health.probe(Task('worker', 2), ps_server.address)
  assert status.state is health.State.WRONG_TASK
  assert 'is ps:0, not worker:2' in str(status)


def test_a_probe_tells_an_unreachable_task():
  status = health.probe(_PS, 'localhost:1')
  assert status.state is health.State.DEAD
  assert str(status) == 'ps:0 at localhost:1 is unreachable'


def test_waiting_names_each_silent_task(ps_server):
  jobs = {'ps': [ps_server.address, 'localhost:1'], 'worker': ['localhost:2']}
  cluster = tfps.Cluster(jobs)
  with pytest.raises(
    tfps.UnreachableError,
    match=r'After 0\.3 seconds: ps:1 at .* unreachable; worker:0 at .*Start',
  ):
    health.wait_until_alive(cluster, cluster.tasks(), timeout_secs=0.3)


def test_what_is_no_tensorflow_server_is_told():
  with socket.create_server(('localhost', 0)) as silent:
    address = f'localhost:{silent.getsockname()[1]}'
    status = health.probe(_PS, address, timeout_secs=0.5)
  assert status.state is not health.State.ALIVE
