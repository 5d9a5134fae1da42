import socket

from absl import app
import pytest
import tensorflow as tf

import tfps
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


def test_an_address_that_does_not_reach_this_host_is_told():
  with pytest.raises(
    tfps.ServerStartError,
    match=r'at nosuchhost\.invalid:\d+, which .*UNAVAILABLE, .*\. Give an addr',
  ):
    tfps.Server(_alone('nosuchhost.invalid:0'))


def test_a_config_that_tensorflow_refuses_is_told():
  config = tf.compat.v1.ConfigProto(device_filters=['nonsense'])
  with pytest.raises(
    tfps.ServerStartError,
    match=r'ps:0 could not start .*: Invalid device filter: nonsense\. Correct',
  ):
    tfps.Server(_alone('localhost:0'), config=config)


def test_an_argument_that_is_no_flag_is_told():
  with pytest.raises(app.UsageError, match=r"'worker' is no flag\. Leave"):
    server_lib.main(['server', 'worker'])


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


def test_an_evaluator_does_not_serve():
  jobs = {'ps': ['h0:1'], 'worker': ['h1:1']}
  with pytest.raises(ValueError, match=r'Call tfps\.evaluate_checkpoints'):
    tfps.serve(tfps.Cluster(jobs, tfps.Task('evaluator', 0)))


def test_threads_are_more_than_workers():
  config = server_lib.default_config(num_workers=100)
  assert config.inter_op_parallelism_threads >= 128


def test_a_ps_has_no_gpu(ps_server):
  assert dict(ps_server.config.device_count) == {'GPU': 0}
  assert not dict(server_lib.default_config(num_workers=1).device_count)
