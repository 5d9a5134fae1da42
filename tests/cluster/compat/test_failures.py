"""Canaries for what `tfps._compat.preemption_handler` relies upon."""

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator as cc
from tensorflow.python.eager import context

from tfps import testing
from tfps._compat import preemption_handler

SOURCES = {
  'the worker asks for its handler each time': (
    cc.Worker._process_closure,
    'with self.failure_handler.wait_on_failure(',
  ),
  'so it does for what it makes anew': (
    cc.Worker._process_resource_closure,
    'with self.failure_handler.wait_on_failure(',
  ),
  'a closure that was not to blame is put back': (
    cc.Worker._process_closure,
    'lambda: self._cluster.closure_queue.put_back(closure)',
  ),
  'the loop of the handler starts by its name': (
    cc.WorkerPreemptionHandler.__init__,
    'target=self._preemption_handler',
  ),
  'workers wait for their recovery on this condition': (
    cc.WorkerPreemptionHandler.wait_on_failure,
    'self._worker_up_cond.wait(',
  ),
  'what else is tried again is as here': (
    cc.WorkerPreemptionHandler.wait_on_failure,
    'isinstance(e, errors.CancelledError) and "/job:" in str(e)',
  ),
  'the loop of the handler waits for this': (
    cc.WorkerPreemptionHandler._preemption_handler,
    'self._cluster_due_for_update_or_finish.wait()',
  ),
  'what is no loss of a worker is raised': (
    cc.WorkerPreemptionHandler._validate_preemption_failure,
    'raise e',
  ),
  'a device that is not in the cluster is a lost worker': (
    cc._is_worker_failure,
    'unknown device',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_the_stock_code_is_what_we_replace(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


OVERRIDDEN = {
  '__init__': ['server_def', 'cluster'],
  'stop': [],
  '_preemption_handler': [],
  'wait_on_failure': [
    'on_failure_fn',
    'on_transient_failure_fn',
    'on_recovery_fn',
    'worker_device_name',
  ],
}


@pytest.mark.parametrize('name', OVERRIDDEN)
def test_a_method_that_we_override_takes_the_same_arguments(name):
  method = getattr(cc.WorkerPreemptionHandler, name)
  assert list(inspect.signature(method).parameters)[1:] == OVERRIDDEN[name]


@pytest.fixture(scope='module')
def cluster():
  """That of a coordinator of TensorFlow's own."""
  with testing.InProcessCluster(num_workers=1, num_ps=1) as servers:
    strategy = tf.distribute.ParameterServerStrategy(servers.cluster.resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    yield coordinator._cluster
    coordinator._cluster.stop()


ATTRIBUTES = {
  'handler': (
    lambda cluster: cluster.failure_handler,
    {
      '_cluster',
      '_cluster_due_for_update_or_finish',
      '_cluster_update_lock',
      '_preemption_handler_thread',
      '_server_def',
      '_should_preemption_thread_run',
      '_validate_preemption_failure',
      '_worker_up_cond',
    },
  ),
  'cluster': (
    lambda cluster: cluster,
    {
      '_record_and_ignore_transient_ps_failure',
      '_record_and_ignore_transient_timeouts',
    },
  ),
  'context': (
    lambda _: context.context(),
    {'clear_executor_errors', 'update_server_def'},
  ),
}


@pytest.mark.parametrize('name', ATTRIBUTES)
def test_what_we_use_of_an_object_is_there(cluster, name):
  get, attributes = ATTRIBUTES[name]
  target = get(cluster)
  assert {a for a in attributes if not hasattr(target, a)} == set()


def test_a_worker_is_named_by_the_end_of_its_device(cluster):
  assert cluster.workers[0].device_name.rpartition(':')[2] == '0'


def test_executions_fail_with_one_of_these():
  source = inspect.getsource(cc.WorkerPreemptionHandler.wait_on_failure)
  assert 'except (errors.OpError, ClosureInputError,' in source
  assert 'ClosureAbortedError, TypeError) as e:' in source
  assert len(preemption_handler.FAILURES) == 4


def test_the_loss_of_a_ps_is_told_from_others():
  lost = 'Additional GRPC error information from remote target /job:ps/task:0'
  assert cc._is_ps_failure(tf.errors.UnavailableError(None, None, lost))
  assert not cc._is_ps_failure(tf.errors.UnavailableError(None, None, '?'))
