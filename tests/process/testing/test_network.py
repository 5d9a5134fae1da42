"""Hosts of their own for tasks, with real namespaces."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from benchmarks.network import __main__ as command
from benchmarks.network import train
from benchmarks.network import transfer
from tests.support import waiting
from tfps import testing
from tfps.testing.chaos import network as network_lib

_ROOT = pathlib.Path(__file__).parents[3]
_PROBLEM = network_lib.problem()
_needs_network = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)

_OWNER = """
import subprocess
from tfps import testing

with testing.Network(2) as network:
  task = network.popen(1, ['sleep', 'infinity'])
  print(task.pid, flush=True)
  task.wait()
"""


def _output(network, host, *args):
  process = network.popen(host, args, stdout=subprocess.PIPE)
  out, _ = process.communicate(timeout=30)
  assert process.returncode == 0
  return out.decode()


def _namespace(pid):
  return os.readlink(f'/proc/{pid}/ns/net')


def _namespaces():
  """The network namespaces in which any process is."""
  found = set()
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    with contextlib.suppress(OSError):  # it has ended, or is the kernel's
      found.add(_namespace(process.name))
  return found


def _of_this_machine():
  """Its named namespaces, interfaces and queues."""
  return [
    subprocess.run(words, capture_output=True, check=True, text=True).stdout
    for words in (
      ['ip', 'netns', 'list'],
      ['ip', '-oneline', 'link'],
      ['ip', 'route'],
      ['tc', 'qdisc'],
    )
  ]


@_needs_network
def test_a_transfer_takes_as_long_as_the_rate_says():
  num_bytes = 4_000_000
  with testing.Network(2, mbit_per_sec=100) as network:
    before = [network.traffic(host) for host in range(2)]
    rate = transfer.measure(network, sender=0, receiver=1, num_bytes=num_bytes)
    first, second = (network.traffic(i) - before[i] for i in range(2))
  assert rate == pytest.approx(100, rel=0.25)
  assert num_bytes <= first.sent == second.received < 1.1 * num_bytes
  assert 0 < first.received == second.sent < 0.1 * num_bytes


@_needs_network
def test_a_network_has_nothing_to_do_with_the_machines_own():
  before = _of_this_machine()
  with testing.Network(2, mbit_per_sec=400) as network:
    assert _of_this_machine() == before
    routes = _output(network, 0, 'ip', 'route').splitlines()
    links = _output(network, 0, 'ip', '-brief', 'link').splitlines()
  assert [route.split()[:3] for route in routes] == [
    ['10.18.0.0/24', 'dev', 'eth0']
  ]
  assert [link.split('@')[0].split()[0] for link in links] == ['lo', 'eth0']


@_needs_network
def test_nothing_is_left_of_a_network():
  with testing.Network(2) as network:
    task = network.popen(0, ['sleep', 'infinity'])
    waiting.until(lambda: _namespace(task.pid) != _namespace('self'))
    inside = _namespace(task.pid)
  assert task.poll() is not None
  waiting.until(lambda: inside not in _namespaces())
  with pytest.raises(RuntimeError, match='only within its context'):
    network.traffic(0)
  network.stop()


@_needs_network
def test_nothing_is_left_when_the_owner_is_killed():
  before = _namespaces()
  owner = subprocess.Popen(
    [sys.executable, '-c', _OWNER], cwd=_ROOT, stdout=subprocess.PIPE
  )
  task = int(owner.stdout.readline())
  waiting.until(lambda: _namespace(task) not in before)
  mine = _namespace(task)
  assert mine in _namespaces()
  os.kill(owner.pid, signal.SIGKILL)
  owner.communicate(timeout=30)
  waiting.until(lambda: not pathlib.Path(f'/proc/{task}').exists())
  waiting.until(lambda: mine not in _namespaces())


@_needs_network
@pytest.mark.exhaustive
def test_a_cluster_trains_with_each_task_on_a_host_of_its_own():
  num_first_steps, num_steps = 2, 8
  program = ['-m', train.__name__, str(num_first_steps), str(num_steps)]
  with testing.ProcessCluster(
    num_workers=1,
    num_ps=2,
    on_hosts=True,
    mbit_per_sec=400,
    commands={'chief': [sys.executable, *program]},
  ) as cluster:
    status = cluster.wait('chief', 0, timeout_secs=120)
    log = cluster.log('chief', 0)
    ps = [cluster.traffic('ps', i) for i in range(2)]
    worker = cluster.traffic('worker', 0)
  assert status == 0, log
  result = json.loads(log.splitlines()[-1])
  assert result['steps'] == num_first_steps + num_steps
  assert 0 < result['loss'] < train.NUM_VARIABLES
  # Parameters come, gradients go, and all of it passes the interfaces.
  num_bytes = (num_first_steps + num_steps) * train.NUM_BYTES
  for count in (
    worker.sent,
    worker.received,
    ps[0].sent + ps[1].sent,
    ps[0].received + ps[1].received,
  ):
    assert num_bytes < count < 1.2 * num_bytes
  least_secs = num_steps * train.NUM_BYTES * 8 / 400e6
  assert result['secs'] > 0.9 * least_secs


def _reaches(network, sender, receiver):
  # A host without the port refuses, which is an answer.
  knock = (
    'import socket\n'
    'try:\n'
    f'  socket.create_connection(({network.address(receiver)!r}, 9), 0.5)\n'
    'except ConnectionRefusedError:\n'
    '  raise SystemExit(0)\n'
  )
  command = [sys.executable, '-I', '-S', '-c', knock]
  return network.popen(sender, command, stderr=subprocess.DEVNULL).wait(30) == 0


@_needs_network
def test_hosts_can_be_cut_off_from_each_other():
  with testing.Network(3) as network:
    assert _reaches(network, 0, 1)
    for _ in range(2):
      network.cut(0, 1)
    assert not _reaches(network, 0, 1)
    assert not _reaches(network, 1, 0)
    assert _reaches(network, 0, 2)
    for _ in range(2):
      network.mend(0, 1)
    assert _reaches(network, 1, 0)


@_needs_network
def test_a_host_can_be_cut_off_from_all_others():
  with testing.Network(3) as network:
    for _ in range(2):
      network.cut(2)
    assert not _reaches(network, 0, 2)
    assert not _reaches(network, 2, 1)
    assert _reaches(network, 0, 1)
    for _ in range(2):
      network.mend(2)
    assert _reaches(network, 2, 0)


def test_tasks_without_hosts_cannot_be_cut_off():
  with pytest.raises(ValueError, match='not on hosts of their own'):
    testing.ProcessCluster(1, 1).cut('ps', 0)


def test_a_cluster_in_which_nobody_trains_is_refused():
  with pytest.raises(ValueError, match='no task trains'):
    testing.ProcessCluster(1, 1, on_hosts=True)


@pytest.mark.parametrize(
  ('num_hosts', 'rate', 'message'),
  [
    (0, None, 'num_hosts is 0. Give 1 to 250'),
    (251, None, 'num_hosts is 251'),
    (2, 0.0, 'mbit_per_sec is 0.0. Give more than 0, or None'),
    (2, -1.0, 'mbit_per_sec is -1.0'),
  ],
)
def test_networks_that_cannot_be_are_refused(num_hosts, rate, message):
  with pytest.raises(ValueError, match=message):
    testing.Network(num_hosts, rate)


def test_a_host_that_is_not_there_is_refused():
  network = testing.Network(2)
  for host in (-1, 2):
    with pytest.raises(ValueError, match=f'no host {host}. There are 2'):
      network.address(host)


def test_a_machine_without_the_tools_is_told(monkeypatch, capsys):
  monkeypatch.setattr(os, 'geteuid', lambda: 0)
  monkeypatch.setenv('PATH', '')
  assert command.main([]) == 1
  assert 'ip, tc, unshare, nsenter, sleep is missing' in capsys.readouterr().err
  with pytest.raises(RuntimeError, match='Install iproute2'):
    testing.Network(1).__enter__()


def test_who_is_not_root_is_told(monkeypatch):
  monkeypatch.setattr(os, 'geteuid', lambda: 1000)
  assert network_lib.problem() == 'Network namespaces require root.'
