"""Servers that are processes, and how they end."""

import json
import os
import signal
import sys

import portpicker
import pytest

from tests.support import commands
from tests.support import waiting
from tfps import testing
from tfps.server import health

# ps:2 gives up early, and ps:3 starts at a port that is taken.
_SERVE = """
import socket
import tfps
cluster = tfps.resolve_cluster()
index = cluster.task.index
taken = None
if index == 3:
  taken = socket.create_server(('', int(cluster.address(cluster.task)[10:])))
tfps.serve(cluster, chief_timeout_secs=1.0 if index == 2 else 600.0)
print('serve has returned')
"""


@pytest.fixture(scope='module')
def serving(tmp_path_factory):
  program = tmp_path_factory.mktemp('serving') / 'serve.py'
  program.write_text(_SERVE)
  commands = {
    'ps': [sys.executable, str(program)],
    'worker': [sys.executable, '-m', 'tfps.server'],
  }
  with testing.ProcessCluster(
    1, 4, commands=commands, preload=['tensorflow']
  ) as cluster:
    health.wait_until_alive(
      cluster.cluster, cluster.cluster.tasks('ps')[:2], timeout_secs=60
    )
    yield cluster


@pytest.mark.parametrize(
  ('index', 'number', 'status'),
  [(0, signal.SIGTERM, 143), (1, signal.SIGINT, 130)],
  ids=['SIGTERM', 'SIGINT'],
)
def test_signals_end_a_server(serving, index, number, status):
  ready = f'ps:{index} is ready at localhost:'
  waiting.until(lambda: ready in serving.log('ps', index))
  os.kill(serving.pid('ps', index), number)
  assert serving.wait('ps', index, timeout_secs=10) == status
  said = f'Leaving on {number.name} with status {status}.'
  assert said in serving.log('ps', index)


def test_a_server_whose_chief_is_gone_for_good_ends(serving):
  assert serving.wait('ps', 2, timeout_secs=60) == 129
  assert 'no client has been alive for 1 seconds' in serving.log('ps', 2)


def test_a_server_at_a_taken_port_exits_1(serving):
  assert serving.wait('ps', 3, timeout_secs=60) == 1
  assert 'is in use' in serving.log('ps', 3)


# The kernel chooses the thread that gets a signal of the process.
_TOLD_IN_A_THREAD = """
import signal, threading, time
import tfps
from tfps.monitor import activities

def send():
  while 'service.py' not in activities.stacks().split('thread ')[1]:
    time.sleep(0.1)
  time.sleep(0.5)
  signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=send, daemon=True).start()
tfps.serve(tfps.resolve_cluster())
"""


def test_a_signal_that_reaches_another_thread_ends_a_server(tmp_path):
  (tmp_path / 'serve.py').write_text(_TOLD_IN_A_THREAD)
  port = portpicker.pick_unused_port()
  done = commands.run(
    tmp_path / 'serve.py',
    timeout_secs=30,
    TF_CONFIG=json.dumps(
      {
        'cluster': {'ps': [f'localhost:{port}'], 'worker': ['localhost:1']},
        'task': {'type': 'ps', 'index': 0},
      }
    ),
  )
  assert done.status == 143, done.output


_TRAIN = """
import pathlib
import tfps
strategy = tfps.ParameterServerStrategy(tfps.resolve_cluster())
has_failed = pathlib.Path(__file__).with_name('has_failed')
if not has_failed.exists():
  has_failed.touch()
  raise RuntimeError('this program fails at first')
"""


def test_servers_wait_for_a_chief_that_failed_and_end_with_one_that_did_not(
  tmp_path,
):
  (tmp_path / 'train.py').write_text(_TRAIN)
  chief = [sys.executable, str(tmp_path / 'train.py')]
  with testing.ProcessCluster(
    1, 1, commands={'chief': chief}, preload=['tensorflow']
  ) as cluster:
    assert cluster.wait('chief', 0, timeout_secs=60) == 1
    assert 'fails at first' in cluster.log('chief', 0)
    cluster.start('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=60) == 0
    for job in ('ps', 'worker'):
      assert cluster.wait(job, 0, timeout_secs=30) == 0
      said = [
        line.rpartition('] ')[2]
        for line in cluster.log(job, 0).splitlines()
        if 'chief:0 says' in line
      ]
      assert said == ['chief:0 says hello.'] * 2 + ['chief:0 says done.']


def test_a_wrong_flag_is_told():
  port = portpicker.pick_unused_port()
  flags = [f'--ps_hosts=localhost:{port}', '--worker_hosts=localhost:1']
  done = commands.run(
    '-m', 'tfps.server', '--job_name=ps', '--task_index=4', *flags
  )
  assert done.status == 1
  assert 'ps:4 is not in the cluster' in done.output
