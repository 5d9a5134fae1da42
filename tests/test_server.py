import os
import signal
import socket
import sys

import portpicker
import pytest
import tensorflow as tf

from tests import commands
from tests import waiting
import tfps
from tfps import testing
from tfps.server import health
from tfps.server import server as server_lib


def _alone(address: str, job: str = 'ps') -> tfps.Cluster:
  jobs = {'ps': {}, 'worker': {}, job: {0: address}}
  return tfps.Cluster(jobs, tfps.Task(job, 0))


def test_port_0_takes_a_free_port():
  with tfps.Server(_alone('localhost:0')) as server:
    assert server.target == f'grpc://{server.address}'
    assert int(server.address.rpartition(':')[2]) > 0
    status = health.probe(tfps.Task('ps', 0), server.address)
    assert status.state is health.State.ALIVE


def test_a_server_computes():
  server = tfps.Server(_alone('localhost:0'))
  with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
    assert session.run(tf.constant(1) + 2) == 3


def test_a_port_in_use_is_named(set_timeouts):
  set_timeouts(port_retry_secs=0.2)
  with socket.create_server(('', 0)) as taken:
    port = taken.getsockname()[1]
    with pytest.raises(
      tfps.ServerStartError, match=f'ps:0 .* port {port} of .* is in use'
    ):
      tfps.Server(_alone(f'localhost:{port}'))


def test_a_task_that_runs_already_is_told(set_timeouts):
  set_timeouts(port_retry_secs=0.2)
  with tfps.Server(_alone('localhost:0')) as server:
    address = server.address
    with pytest.raises(tfps.ServerStartError, match='by a server that is ps:0'):
      tfps.Server(_alone(address))


@pytest.mark.parametrize(
  'task', [None, tfps.Task('chief', 0), tfps.Task('evaluator', 0)], ids=str
)
def test_a_task_without_an_address_has_no_server(task):
  cluster = tfps.Cluster({'ps': ['h0:1'], 'worker': ['h1:1']}, task)
  with pytest.raises(ValueError, match='a server needs a task with an address'):
    tfps.Server(cluster)


def test_a_chief_does_not_serve():
  jobs = {'ps': ['h0:1'], 'worker': ['h1:1'], 'chief': ['h2:1']}
  with pytest.raises(ValueError, match='which runs the training program'):
    tfps.serve(tfps.Cluster(jobs, tfps.Task('chief', 0)))


def test_threads_are_more_than_workers():
  config = server_lib.default_config(num_workers=100)
  assert config.inter_op_parallelism_threads >= 128


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_server_whose_chief_is_gone_for_good_ends(serving):
  assert serving.wait('ps', 2, timeout_secs=60) == 129
  assert 'no client has been alive for 1 seconds' in serving.log('ps', 2)


@pytest.mark.slow
def test_a_server_at_a_taken_port_exits_1(serving):
  assert serving.wait('ps', 3, timeout_secs=60) == 1
  assert 'is in use' in serving.log('ps', 3)


_TRAIN = """
import pathlib
import tfps
strategy = tfps.ParameterServerStrategy(tfps.resolve_cluster())
has_failed = pathlib.Path(__file__).with_name('has_failed')
if not has_failed.exists():
  has_failed.touch()
  raise RuntimeError('this program fails at first')
"""


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_wrong_flag_is_told():
  port = portpicker.pick_unused_port()
  flags = [f'--ps_hosts=localhost:{port}', '--worker_hosts=localhost:1']
  done = commands.run(
    '-m', 'tfps.server', '--job_name=ps', '--task_index=4', *flags
  )
  assert done.status == 1
  assert 'ps:4 is not in the cluster' in done.output
