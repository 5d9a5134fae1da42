"""Canaries for what `tfps._compat.strategy` relies upon."""

import copy
import inspect
import pathlib

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute import parameter_server_strategy_v2 as stock
from tensorflow.python.eager import context
from tensorflow.python.training import server_lib

import tfps
from tfps import testing
from tfps._compat import strategy as compat

Strategy = stock.ParameterServerStrategyV2
Extended = stock.ParameterServerStrategyV2Extended


@pytest.fixture(scope='module')
def cluster():
  with testing.InProcessCluster(num_workers=1, num_ps=2) as servers:
    yield servers.cluster


@pytest.fixture
def strategy(cluster):
  return tf.distribute.ParameterServerStrategy(cluster.resolver())


SOURCES = {
  'the constructor connects by this method': (
    Strategy.__init__,
    'self._connect_to_cluster(coordinator_name="chief")',
  ),
  'it connects once the resolver was checked': (
    Strategy.__init__,
    'self._verify_args_and_config(cluster_resolver)',
  ),
  'the resolver is kept before that': (
    Strategy.__init__,
    'self._cluster_resolver = cluster_resolver',
  ),
  'it makes its own extended': (
    Strategy.__init__,
    'self._extended = ParameterServerStrategyV2Extended(',
  ),
  'a strategy sets this on its extended': (
    distribute_lib.StrategyBase.__init__,
    'extended._retrace_functions_for_each_device = (',
  ),
  'the partitioner is kept, and called by these names': (
    Extended._create_variable,
    'self._variable_partitioner(shape=shape, dtype=dtype)',
  ),
  'each shard is made by this method, with the same arguments': (
    Extended._create_variable,
    'var_list.append(self._create_variable_round_robin(var_creator, **kwargs))',
  ),
  'the creator it gets is made by this method': (
    Extended._create_variable,
    'var_creator = self._create_var_creator(next_creator, **kwargs)',
  ),
  'the first shards get a row more': (
    Extended._create_variable,
    'extra = shape[0] % num_partitions',
  ),
  'variables are counted': (
    Extended._create_variable_round_robin,
    'self._variable_count += 1',
  ),
  'an optimizer asks whether to merge': (
    distribute_lib.StrategyExtendedV1._use_merge_call,
    'return True',
  ),
  'without merging updates come by this method': (
    distribute_lib.ReplicaContext._update,
    'self._strategy.extended._replica_ctx_update(',
  ),
  'and sums by this one': (
    distribute_lib.ReplicaContextBase.all_reduce,
    'self._strategy.extended._replica_ctx_all_reduce(',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_the_stock_code_is_what_we_replace(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


OVERRIDDEN = {
  '__init__': [
    'container_strategy',
    'cluster_resolver',
    'variable_partitioner',
  ],
  '_call_for_each_replica': ['fn', 'args', 'kwargs'],
  '_create_var_creator': ['next_creator', 'kwargs'],
  '_create_variable': ['next_creator', 'kwargs'],
  '_create_variable_round_robin': ['next_creator', 'kwargs'],
  '_distribute_datasets_from_function': ['dataset_fn', 'options'],
  '_experimental_distribute_dataset': ['dataset', 'options'],
  '_reduce': ['reduce_op', 'value'],
  '_reduce_to': ['reduce_op', 'value', 'destinations', 'options'],
  '_update': ['var', 'fn', 'args', 'kwargs', 'group'],
  '_use_merge_call': [],
  '_replica_ctx_update': ['var', 'fn', 'args', 'kwargs', 'group'],
  '_replica_ctx_all_reduce': ['reduce_op', 'value', 'options'],
}


@pytest.mark.parametrize('name', OVERRIDDEN)
def test_a_method_that_we_override_takes_the_same_arguments(name):
  parameters = list(inspect.signature(getattr(Extended, name)).parameters)
  assert parameters[1:] == OVERRIDDEN[name]


def test_extended_counts_its_ps(strategy):
  assert strategy.extended._num_ps == 2
  assert strategy._num_ps == 2
  assert strategy.extended._num_replicas_in_sync == 1


def test_an_extended_may_be_replaced(strategy):
  extended = compat.Extended(strategy, strategy._cluster_resolver, None)
  compat.replace_extended(strategy, extended)
  assert strategy.extended is extended
  with strategy.scope():
    assert tf.Variable(1.0).device.startswith('/job:ps')
  assert extended._variable_count == 1


def test_colocation_outdoes_the_scope(strategy):
  with strategy.scope():
    first, second = tf.Variable(1.0), tf.Variable(2.0)
  assert first.device != second.device
  with compat.colocated(first), compat.colocated(second):
    assert tf.identity(first).device == second.device
  ps = '/job:ps/task:0/device:CPU:0'
  with compat.colocated(second), compat.colocated(None), tf.device(ps):
    assert tf.identity(1.0).device == first.device


def test_an_update_is_told_where_it_happens(strategy):
  with strategy.scope():
    variable = tf.Variable(1.0)
  assert distribute_lib.get_update_replica_id() is None
  with compat.updating(variable):
    assert distribute_lib.get_update_replica_id() == variable.device
    assert tf.distribute.in_cross_replica_context() is False
  assert distribute_lib.get_update_replica_id() is None


def test_the_context_knows_the_own_address(cluster, strategy):
  address = cluster.address(cluster.task)
  assert compat.own_address('chief') == address
  assert context.get_server_def().job_name == 'chief'
  assert compat.is_own_address('chief', address)
  assert not compat.is_own_address('chief', 'localhost:1')
  assert not compat.is_own_address('chief', address, index=1)
  assert not compat.is_own_address('worker', address)


def test_an_address_is_kept_only_beside_the_same_others(cluster, strategy):
  jobs = {job: dict(cluster.jobs[job]) for job in ('ps', 'worker')}
  others = tf.train.ClusterSpec(jobs)
  address = cluster.address(cluster.task)
  assert compat.own_address_beside('chief', others) == address
  fewer = tf.train.ClusterSpec({'worker': jobs['worker']})
  assert compat.own_address_beside('chief', fewer) is None


def test_all_servers_of_a_process_share_as_many_threads_as_is_said(strategy):
  names = [
    path.read_text().strip()
    for path in pathlib.Path('/proc/self/task').glob('*/comm')
  ]
  assert names.count('tf_Compute') >= compat.num_server_threads() >= 30


def test_threads_of_the_server_that_connecting_starts_sleep(cluster):
  compat.let_threads_sleep()
  compat.let_threads_sleep()
  assert context.context().config.experimental.disable_thread_spinning
  tfps.ParameterServerStrategy(cluster)
  config = context.get_server_def().default_session_config
  assert config.experimental.disable_thread_spinning


def test_ps_see_each_other_unless_they_were_hidden_before(cluster, monkeypatch):
  filters = server_lib.ClusterDeviceFilters
  monkeypatch.setattr(filters, 'set_device_filters', filters.set_device_filters)
  see = compat.let_ps_see_each_other.__wrapped__
  see()
  tf.distribute.ParameterServerStrategy(cluster.resolver())
  seen = copy.deepcopy(context.get_server_def())
  monkeypatch.setattr(context, 'get_server_def', lambda: seen)
  assert see()
  (ps,) = [job for job in seen.cluster_device_filters.jobs if job.name == 'ps']
  assert set(ps.tasks) == {0, 1}
  for task in ps.tasks.values():
    assert {'/job:ps', '/job:worker'} <= set(task.device_filters)
    task.device_filters.remove('/job:worker')
  assert see()
  while '/job:ps' in ps.tasks[1].device_filters:
    ps.tasks[1].device_filters.remove('/job:ps')
  assert not see()
