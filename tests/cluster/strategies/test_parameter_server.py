import inspect
import socket

import numpy as np
import portpicker
import pytest
import tensorflow as tf

from tests.support import turns
from tfps import errors
from tfps import testing
from tfps._compat import strategy as compat
from tfps.cluster import spec as spec_lib
from tfps.recovery import config as recovery_config
from tfps.server import health
from tfps.strategies import parameter_server as parameter_server_lib
from tfps.training import coordinator as coordinator_lib
from tfps.variables import partitioners
from tfps.variables import placement
from tfps.variables import sharded

Stock = tf.distribute.ParameterServerStrategy
StockCoordinator = tf.distribute.coordinator.ClusterCoordinator

NUM_WORKERS, NUM_PS = 2, 3


@pytest.fixture
def cluster():
  with testing.InProcessCluster(NUM_WORKERS, NUM_PS) as servers:
    yield servers.cluster


@pytest.fixture
def strategy(cluster):
  return parameter_server_lib.ParameterServerStrategy(cluster)


def sharding(cluster, num_shards=NUM_PS, **kwargs):
  return parameter_server_lib.ParameterServerStrategy(
    cluster, partitioners.FixedShards(num_shards), **kwargs
  )


def ps_of(variable):
  return tf.DeviceSpec.from_string(variable.device).task


def closed_port():
  return f'localhost:{portpicker.pick_unused_port()}'


def with_address(cluster, task, address):
  jobs = {job: dict(tasks) for job, tasks in cluster.jobs.items()}
  jobs[task.job][task.index] = address
  return spec_lib.Cluster(jobs, cluster.task)


@pytest.mark.parametrize('recovers', [False, True])
def test_it_warns_that_moved_ps_are_not_found(
  cluster, tmp_path, monkeypatch, caplog, recovers
):
  monkeypatch.setattr(compat, 'let_ps_see_each_other', lambda: False)
  recovery = recovery_config.Recovery(tmp_path) if recovers else None
  strategy = parameter_server_lib.ParameterServerStrategy(
    cluster, recovery=recovery
  )
  assert ('hides ps from each other' in caplog.text) == recovers
  strategy.close()


def test_it_takes_the_stock_arguments(cluster):
  stock = list(inspect.signature(Stock.__init__).parameters.values())
  ours = list(
    inspect.signature(
      parameter_server_lib.ParameterServerStrategy.__init__
    ).parameters.values()
  )
  assert len(stock) == 3
  for mine, theirs in zip(ours[1:3], stock[1:], strict=True):
    assert mine.kind is theirs.kind
    assert mine.default is theirs.default
  assert ours[2].name == stock[2].name
  assert {p.kind for p in ours[3:]} == {inspect.Parameter.KEYWORD_ONLY}
  strategy = parameter_server_lib.ParameterServerStrategy(
    cluster.resolver(), variable_partitioner=partitioners.FixedShards(2)
  )
  assert isinstance(strategy, Stock)


@pytest.mark.parametrize(
  'given',
  [lambda cluster: cluster, lambda cluster: cluster.resolver()],
  ids=['cluster', 'resolver'],
)
def test_variables_live_on_the_ps(cluster, given):
  strategy = parameter_server_lib.ParameterServerStrategy(given(cluster))
  with strategy.scope():
    variables = [tf.Variable(float(i)) for i in range(4)]
  outside = tf.Variable(0.0)
  assert [ps_of(v) for v in variables] == [0, 1, 2, 0]
  assert [v.numpy() for v in variables] == [0.0, 1.0, 2.0, 3.0]
  assert outside.device.startswith('/job:chief')


def test_one_local_task_gets_a_ps_and_a_worker():
  local = spec_lib.Cluster.local()
  strategy = parameter_server_lib.ParameterServerStrategy(local)
  with coordinator_lib.Coordinator(strategy, timeout_secs=60) as coordinator:
    with strategy.scope():
      variable = tf.Variable(1.0)
    coordinator.schedule(tf.function(lambda: variable.assign_add(2.0)))
    coordinator.join()
  assert variable.device == '/job:ps/replica:0/task:0/device:CPU:0'
  assert variable.numpy() == 3.0


@pytest.mark.parametrize(
  'make',
  turns.rarely(
    [StockCoordinator, coordinator_lib.Coordinator],
    but=[coordinator_lib.Coordinator],
  ),
  ids=['stock coordinator', 'our coordinator'],
)
def test_no_increment_is_lost(cluster, make):
  strategy = sharding(cluster)
  coordinator = make(strategy)
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64)
    table = tf.Variable(tf.zeros([7, 2]))

  @tf.function
  def step():
    for _ in tf.range(10):
      count.assign_add(1)
      table.assign_add(tf.ones([7, 2]))
      row = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([6, 6]))
      table.scatter_add(row)

  for _ in range(20):
    coordinator.schedule(step)
  coordinator.join()
  expected = np.full([7, 2], 200.0)
  expected[6] += 400
  assert count.numpy() == 200
  np.testing.assert_array_equal(table.numpy(), expected)


def test_gradients_computed_on_workers_train_shards(cluster):
  strategy = sharding(cluster)
  coordinator = StockCoordinator(strategy)
  with strategy.scope():
    table = tf.Variable(tf.ones([6, 2]))

  @tf.function
  def step():
    def replica_fn():
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [5, 0, 5]))
      gradient = tape.gradient(loss, table)
      for shard, own in zip(
        table.variables, table.split(gradient), strict=True
      ):
        shard.scatter_sub(own)

    strategy.run(replica_fn)

  coordinator.schedule(step)
  coordinator.join()
  expected = np.ones([6, 2])
  expected[0] -= 1
  expected[5] -= 2
  np.testing.assert_array_equal(table.numpy(), expected)


def test_what_is_colocated_goes_where_its_owner_is(strategy):
  with strategy.scope():
    owners = [tf.Variable(tf.zeros([n])) for n in (5, 500, 50, 1)]
    for owner in owners:
      with strategy.extended.colocate_vars_with(owner):
        assert ps_of(tf.Variable(tf.zeros([9]))) == ps_of(owner)


def test_what_is_colocated_with_shards_is_cut_like_them(cluster):
  strategy = sharding(cluster)
  with strategy.scope():
    owner = tf.Variable(tf.zeros([7, 2]))
    with strategy.extended.colocate_vars_with(owner):
      values = np.arange(14.0, dtype=np.float32).reshape(7, 2)
      slot = tf.Variable(values)
      initialized = tf.Variable(
        lambda: tf.ones([7, 2]), shape=[7, 2], dtype=tf.float32
      )
      scalar = tf.Variable(3.0)
  for shaped in (slot, initialized):
    assert isinstance(shaped, sharded.ShardedVariable)
    assert shaped.devices == owner.devices
  np.testing.assert_array_equal(slot.numpy(), values)
  np.testing.assert_array_equal(initialized.numpy(), np.ones([7, 2]))
  assert ps_of(scalar) == ps_of(owner.variables[0])


def test_updates_run_where_the_variable_is(cluster):
  strategy = sharding(cluster)
  with strategy.scope():
    table = tf.Variable(tf.zeros([4, 2]))

  def add(shard, value, factor):
    assert shard.device in table.devices
    shard.assign_add(factor * value)

  strategy.extended.update(table, add, args=(tf.ones([4, 2]), 3.0))
  np.testing.assert_array_equal(table.numpy(), np.full([4, 2], 3.0))


def test_an_update_by_rows_reaches_the_shards_that_hold_them(cluster):
  strategy = sharding(cluster)
  with strategy.scope():
    table = tf.Variable(tf.zeros([6, 1]))
  values, indices = [[1.0], [2.0], [4.0]], [5, 0, 5]
  rows = tf.IndexedSlices(tf.constant(values), tf.constant(indices))
  strategy.extended.update(
    table, lambda shard, own: shard.scatter_add(own), args=(rows,)
  )
  assert table.numpy().ravel().tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 5.0]


def test_a_variable_creator_sees_its_own_arguments_only(cluster):
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(set(kwargs))
    return next_creator(**kwargs)

  strategy = sharding(cluster)
  with tf.variable_creator_scope(creator), strategy.scope():
    tf.Variable(tf.zeros([6, 1]))
  names = set(inspect.signature(tf.Variable.__init__).parameters) | {
    'distribute_strategy',
    'expected_shape',
    'use_resource',
    'validate_shape',
  }
  assert len(seen) == NUM_PS
  assert set.union(*seen) <= names


def test_scalars_are_not_cut(cluster):
  strategy = sharding(cluster)
  with strategy.scope():
    assert tf.Variable(1.0).shape == []
    assert tf.Variable([1.0]).shape == [1]
    assert not isinstance(tf.Variable([1.0]), sharded.ShardedVariable)


def test_shards_are_initialised_part_by_part(cluster):
  strategy = sharding(cluster, 2)
  asked = []

  def initial_value(shape=(5, 1), dtype=tf.float32, partition_shape=None, **_):
    asked.append(tuple(partition_shape))
    return tf.zeros(partition_shape, dtype)

  with strategy.scope():
    tf.Variable(initial_value, shape=[5, 1], dtype=tf.float32)
  assert asked == [(3, 1), (2, 1)]


def test_placement_goes_by_bytes_and_is_reported(strategy):
  with strategy.scope():
    for i, rows in enumerate([1000, 10, 10, 1000, 10, 10]):
      tf.Variable(tf.zeros([rows]), name=f'v{i}')
  report = strategy.placement_report()
  assert report.num_bytes == (4000, 4040, 120)
  assert report.variables == (
    ('v0:0',),
    ('v1:0', 'v3:0'),
    ('v2:0', 'v4:0', 'v5:0'),
  )
  assert 'ps:2' in str(report)


def test_placement_may_be_chosen(cluster):
  strategy = parameter_server_lib.ParameterServerStrategy(
    cluster, placement=placement.RoundRobin()
  )
  with strategy.scope():
    places = [ps_of(tf.Variable(tf.zeros([n]))) for n in (9, 1, 1, 9, 1, 1)]
  assert places == [0, 1, 2, 0, 1, 2]


def test_shards_of_a_variable_are_placed_together(cluster):
  strategy = sharding(cluster, 4)
  with strategy.scope():
    tf.Variable(tf.zeros([3]), name='small')
    table = tf.Variable(tf.zeros([10, 100]), name='table')
  # Rows 3, 3, 2, 2 on 3 ps.
  rows = [0, 0, 0]
  for shard in table.variables:
    rows[ps_of(shard)] += shard.shape[0]
  assert sorted(rows) == [3, 3, 4]


def test_an_unreachable_ps_is_named_in_time(cluster):
  task = spec_lib.Task('ps', 1)
  address = closed_port()
  with pytest.raises(
    errors.UnreachableError, match=rf'ps:1 at {address} is unreachable'
  ):
    parameter_server_lib.ParameterServerStrategy(
      with_address(cluster, task, address), connect_timeout_secs=1
    )


def test_a_silent_ps_is_named_in_time(cluster):
  with socket.create_server(('localhost', 0)) as silent:
    address = f'localhost:{silent.getsockname()[1]}'
    with pytest.raises(errors.UnreachableError, match=rf'ps:2 at {address}'):
      parameter_server_lib.ParameterServerStrategy(
        with_address(cluster, spec_lib.Task('ps', 2), address),
        connect_timeout_secs=1,
      )


def test_a_port_in_use_is_named(cluster, set_timeouts):
  set_timeouts(port_retry_secs=0.2)
  with socket.create_server(('', 0)) as other:
    address = f'localhost:{other.getsockname()[1]}'
    with pytest.raises(
      errors.ServerStartError,
      match=f'chief:0 could not start .* of {address} is in use',
    ):
      parameter_server_lib.ParameterServerStrategy(
        with_address(cluster, cluster.task, address)
      )


def test_another_task_at_an_address_is_named(cluster):
  jobs = {job: dict(tasks) for job, tasks in cluster.jobs.items()}
  jobs['ps'][0], jobs['worker'][1] = jobs['worker'][1], jobs['ps'][0]
  with pytest.raises(errors.UnreachableError) as error:
    parameter_server_lib.ParameterServerStrategy(
      spec_lib.Cluster(jobs, cluster.task), connect_timeout_secs=1
    )
  assert 'is worker:1, not ps:0' in str(error.value)
  assert 'is ps:0, not worker:1' in str(error.value)


def resolver_of(jobs):
  return tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(jobs), rpc_layer='grpc'
  )


@pytest.mark.parametrize('missing', ['ps', 'worker'])
def test_a_cluster_needs_both_jobs(missing):
  jobs = {'chief': ['h:1'], 'ps': ['h:2'], 'worker': ['h:3']}
  del jobs[missing]
  with pytest.raises(ValueError, match=f'at least one {missing}'):
    parameter_server_lib.ParameterServerStrategy(resolver_of(jobs))


@pytest.mark.parametrize('task', ['ps:0', 'worker:1'])
def test_it_is_for_the_chief(cluster, task):
  job, index = task.split(':')
  seen = cluster.with_task(spec_lib.Task(job, int(index)))
  with pytest.raises(ValueError, match=f'process is {task}. Call tfps.serve'):
    parameter_server_lib.ParameterServerStrategy(seen)


def test_something_else_than_a_cluster_is_refused():
  with pytest.raises(ValueError, match=r'is None\. Give a tfps'):
    parameter_server_lib.ParameterServerStrategy(None)


def test_closing_twice_is_harmless(strategy):
  strategy.close()
  strategy.close()


def test_a_second_strategy_in_one_process_works(cluster):
  values = []
  for _ in range(2):
    strategy = parameter_server_lib.ParameterServerStrategy(cluster)
    with strategy.scope():
      values.append(tf.Variable(1.0))
    values[-1].assign_add(1.0)
  assert [value.numpy() for value in values] == [2.0, 2.0]


def test_legacy_keras_trains_with_the_stock_coordinator(cluster):
  tf_keras = pytest.importorskip('tf_keras')
  strategy = parameter_server_lib.ParameterServerStrategy(cluster)
  coordinator = StockCoordinator(strategy)
  with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
    optimizer = tf_keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
  before = model(tf.ones([1, 2])).numpy().item()

  @tf.function
  def step():
    def replica_fn():
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(tf.ones([1, 2])) - before - 3.0))
      gradients = tape.gradient(loss, model.trainable_variables)
      pairs = zip(gradients, model.trainable_variables, strict=True)
      optimizer.apply_gradients(pairs)

    strategy.run(replica_fn)

  for _ in range(100):
    coordinator.schedule(step)
  coordinator.join()
  assert optimizer.iterations.numpy() == 100
  assert model(tf.ones([1, 2])).numpy().item() == pytest.approx(
    before + 3.0, abs=0.5
  )
  for owner, slot in zip(
    model.trainable_variables, optimizer._momentums, strict=True
  ):
    assert slot.device == owner.device


# Last, as this process then has another address than the other tests know.
@pytest.mark.parametrize(
  'given',
  [lambda cluster: cluster, lambda cluster: cluster.resolver()],
  ids=['cluster', 'resolver'],
)
def test_a_chief_that_is_not_listed_has_one_address_that_answers(
  cluster, given
):
  jobs = {job: cluster.jobs[job] for job in ('ps', 'worker')}
  addresses = set()
  for _ in range(3):
    strategy = parameter_server_lib.ParameterServerStrategy(
      given(spec_lib.Cluster(jobs))
    )
    addresses.add(compat.own_address('chief'))
    with strategy.scope():
      assert ps_of(tf.Variable(1.0)) == 0
  (address,) = addresses
  chief = spec_lib.Task('chief', 0)
  assert health.probe(chief, address).state is health.State.ALIVE
