"""Between-graph mode within this process, and its bad input."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps import errors
from tfps import testing
from tfps.testing.chaos import disks
from tfps.training import training_end
from tfps.variables import partitioners
from tfps.variables import step_replicas

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)


@pytest.fixture
def strategy(tfps_cluster):
  return tfps.BetweenGraphStrategy(tfps_cluster.cluster)


def _job(variable: tf.Variable) -> str:
  return tf.DeviceSpec.from_string(variable.device).job


def test_the_process_is_chief_and_the_only_worker(strategy):
  assert strategy.is_chief
  assert strategy.input_context().num_input_pipelines == 1
  assert strategy.input_context().input_pipeline_id == 0


def test_variables_live_on_the_ps_under_their_names(strategy):
  with strategy.scope(), tf.name_scope('layer'):
    first = tf.Variable(tf.ones([2, 3]), name='kernel')
    second = tf.Variable(tf.zeros([2]), name='kernel')
  assert _job(first) == _job(second) == 'ps'
  assert (first.name, second.name) == ('layer/kernel:0', 'layer/kernel_1:0')
  np.testing.assert_array_equal(first.numpy(), np.ones([2, 3]))


def test_a_step_is_traced_for_the_gpu_of_its_worker(strategy):
  devices = []

  def trace(*names):  # and does not execute, for this machine may have none
    strategy.extended.replicas = step_replicas.Replicas(names)
    step = tf.function(
      lambda: strategy.run(lambda: devices.append(tf.raw_ops.NoOp().device))
    )
    step.get_concrete_function()

  trace('/device:CPU:0')
  trace('/device:GPU:0')
  assert devices == ['', '/device:GPU:0']


@pytest.mark.quick
def test_another_program_attaches_to_the_live_values(tfps_cluster, strategy):
  with strategy.scope():
    variable = tf.Variable([1.0, 2.0], name='lives')
  assert not variable.attached
  variable.assign_add([10.0, 10.0])
  successor = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  with successor.scope():
    again = tf.Variable([1.0, 2.0], name='lives')
  assert again.attached
  np.testing.assert_array_equal(again.numpy(), [11.0, 12.0])
  assert again.device == variable.device


def test_values_that_have_gone_are_put_back(tfps_cluster, tmp_path):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path, every_secs=3600)
  )
  with strategy.scope():
    variable = tf.Variable(0.0, name='goes')
    other = tf.Variable(0.0, name='stays')

  def step(batch):
    variable.assign_add(1.0)
    other.assign_add(1.0)

  def ones(context):
    return tf.data.Dataset.from_tensors(1).repeat()

  strategy.train(step, ones, steps=5)
  tf.raw_ops.DestroyResourceOp(resource=variable.handle)
  strategy.surviving(tf.function(lambda: step(1)))
  assert (variable.numpy(), other.numpy()) == (6, 6)


@pytest.mark.parametrize(
  ('value', 'complaint'),
  [
    (
      np.zeros([3], 'f'),
      r"'typed' on .*ps.* is float32 of shape \(2,\).*\(3,\)",
    ),
    (np.zeros([2], 'i'), r"'typed' on .*ps.* is float32 .* wants int32"),
  ],
  ids=['shape', 'dtype'],
)
def test_a_program_that_means_another_variable_is_told(
  tfps_cluster, value, complaint
):
  with tfps.BetweenGraphStrategy(tfps_cluster.cluster).scope():
    tf.Variable(tf.zeros([2]), name='typed')
  other = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  with other.scope(), pytest.raises(ValueError, match=complaint):
    tf.Variable(value, name='typed')


def test_functions_see_what_was_assigned_before(tfps_cluster, monkeypatch):
  monkeypatch.setenv('TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE', 'True')
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    variables = [tf.Variable(0, name=f'assigned_{i}') for i in range(4)]

  @tf.function
  def read():
    return [tf.identity(variable.read_value()) for variable in variables]

  for value in range(60):
    for variable in variables:
      variable.assign(value)
    assert {int(found) for found in read()} == {value}


def test_modules_and_functions_work_in_the_scope(strategy):
  class Linear(tf.Module):
    def __init__(self) -> None:
      super().__init__('linear')
      with self.name_scope:
        self.weight = tf.Variable([[2.0], [3.0]], name='weight')

    @tf.function
    def __call__(self, x):
      return x @ self.weight

  with strategy.scope():
    linear = Linear()
  assert linear.weight.name == 'linear/weight:0'
  with tf.GradientTape() as tape:
    y = linear(tf.constant([[1.0, 1.0]]))
  assert y.numpy() == [[5.0]]
  (gradient,) = tape.gradient(y, linear.trainable_variables)
  np.testing.assert_array_equal(gradient.numpy(), [[1.0], [1.0]])


def test_several_steps_in_one_call(strategy):
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False)

  @tf.function
  def steps():
    for _ in tf.range(20):
      count.assign_add(1)

  steps()
  steps()
  assert int(count) == 40


def test_metrics_and_seeds_stay_in_the_worker(strategy):
  with strategy.scope():
    mean = keras.metrics.Mean()
    dropout = keras.layers.Dropout(0.5)
    on_read = tf.Variable(
      0.0, synchronization=tf.VariableSynchronization.ON_READ
    )
  own = strategy.task.job
  assert {_job(v.value) for v in mean.variables} == {own}
  assert _job(dropout.seed_generator.state.value) == own
  assert _job(on_read) == own


def test_slots_and_counters_live_on_the_ps(strategy):
  with strategy.scope():
    variable = tf.Variable(tf.ones([4]), name='with_slots')
    optimizer = keras.optimizers.Adam()
    optimizer.build([variable])
  assert {_job(v.value) for v in optimizer.variables} == {'ps'}
  slots = [v.value for v in optimizer.variables if 'with_slots' in v.path]
  assert {slot.device for slot in slots} == {variable.device}


def test_keras_counters_add_on_the_ps(strategy):
  with strategy.scope():
    count = keras.Variable(0, dtype='int64', trainable=False, name='count')

  @tf.function
  def add():
    count.assign_add(1)

  add()
  graph = add.get_concrete_function().graph
  kinds = {operation.type for operation in graph.get_operations()}
  assert 'AssignAddVariableOp' in kinds
  assert 'AssignVariableOp' not in kinds
  count.assign_sub(3)
  assert int(count) == -2


def test_partitioned_variables_are_shared_shard_by_shard(tfps_cluster):
  sharding = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(2)
  )
  with sharding.scope():
    table = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]), name='table')
  assert [shard.name for shard in table.variables] == [
    'table/part_0:0',
    'table/part_1:0',
  ]
  assert len({shard.device for shard in table.variables}) == 2
  rows = tf.nn.embedding_lookup(table, [3, 0])
  np.testing.assert_array_equal(rows.numpy(), [[6.0, 7.0], [0.0, 1.0]])


def test_the_report_says_what_is_where(strategy):
  with strategy.scope():
    tf.Variable(tf.zeros([10]), name='ten')
  report = strategy.placement_report()
  assert report.variables == (('tfps/global_step:0',), ('ten:0',))
  assert report.num_bytes == (8, 40)


def _least_squares(strategy):
  """A step that fits a line, and its data."""
  with strategy.scope():
    weight = tf.Variable(tf.zeros([3, 1]))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])

  def step(batch):
    x, y = batch
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(x @ weight - y))
    optimizer.apply(tape.gradient(loss, [weight]), [weight])
    return {'loss': loss}

  def dataset(context):
    assert context.num_input_pipelines == 1
    x = np.random.default_rng(0).random((64, 3), 'f')
    y = x @ np.array([[1.0], [2.0], [3.0]], 'f')
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)

  return step, dataset, weight


def test_train_reaches_the_step_and_saves(strategy, tmp_path):
  step, dataset, weight = _least_squares(strategy)
  seen = []
  result = strategy.train(
    step,
    dataset,
    steps=105,
    steps_per_execution=10,
    checkpoint=tf.train.Checkpoint(weight=weight),
    checkpoint_dir=tmp_path,
    hooks=[seen.append],
  )
  assert result.step == result.steps == int(strategy.global_step) == 105
  assert [progress.step for progress in seen if progress.moment == 'step'] == [
    *range(10, 101, 10),
    105,
  ]
  assert seen[-2].metrics['loss'] < seen[1].metrics['loss'] / 2
  saved = tf.Variable(tf.zeros([3, 1]))
  tf.train.Checkpoint(weight=saved).restore(
    tf.train.latest_checkpoint(tmp_path)
  ).expect_partial()
  np.testing.assert_array_equal(saved.numpy(), weight.numpy())

  # A later run of the same program: the values on the ps are live.
  weight.assign_add(tf.ones([3, 1]))
  live = weight.numpy()
  again = strategy.train(
    step,
    dataset,
    steps=105,
    checkpoint=tf.train.Checkpoint(weight=weight),
    checkpoint_dir=tmp_path,
  )
  assert again.steps == 0
  np.testing.assert_array_equal(weight.numpy(), live)

  # And with the ps afresh, training is taken up where it was saved.
  strategy.global_step.assign(0)
  resumed = strategy.train(
    step,
    dataset,
    steps=110,
    checkpoint=tf.train.Checkpoint(weight=weight),
    checkpoint_dir=tmp_path,
  )
  assert resumed.step == 110
  assert resumed.steps == 5


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
def test_a_full_disk_is_an_error_that_leaves_the_last_checkpoint(strategy):
  step, dataset, weight = _least_squares(strategy)

  def train(steps):
    return strategy.train(
      step,
      dataset,
      steps=steps,
      checkpoint=tf.train.Checkpoint(weight=weight),
      checkpoint_dir=disk,
    )

  with testing.small_disk(2**20) as disk:
    train(10)
    kept = weight.numpy()
    before = set(disk.iterdir()) - {disk / training_end.NAME}
    with (
      testing.full_disk(disk),
      pytest.raises(errors.CheckpointError, match=f'{disk}: step 20 could not'),
    ):
      train(20)
    assert set(disk.iterdir()) == before
    strategy.global_step.assign(0)  # as if the ps were afresh
    assert train(10).steps == 0
    np.testing.assert_array_equal(weight.numpy(), kept)


def test_a_metric_that_is_not_a_number_ends_training_unless_told(strategy):
  def train(steps, **kwargs):
    return strategy.train(
      lambda batch: {'log': tf.math.log(-batch)},
      lambda _: tf.data.Dataset.from_tensors(1.0).repeat(),
      steps=int(strategy.global_step) + steps,
      **kwargs,
    )

  with pytest.raises(FloatingPointError, match='metric log is not a number'):
    train(3)
  assert train(3, stop_on_nan=False).steps == 3


def test_a_dataset_that_runs_out_is_told(strategy):
  step, dataset, _ = _least_squares(strategy)
  with pytest.raises(ValueError, match='ran out near step 3 of 10; repeat'):
    strategy.train(step, lambda context: dataset(context).take(3), steps=10)


def test_models_can_be_saved_and_loaded(strategy, tmp_path):
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile('sgd', 'mse')
  x = np.random.default_rng(0).random((32, 3), 'f')
  model.fit(x, x[:, :2], verbose=0)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(
    loaded.predict(x, verbose=0), model.predict(x, verbose=0)
  )


@pytest.mark.parametrize(
  ('task', 'jobs'),
  [
    (tfps.Task('ps', 0), {}),
    (None, {}),
    (tfps.Task('chief', 0), {}),
    (tfps.Task('evaluator', 0), {}),
  ],
  ids=str,
)
def test_tasks_that_do_not_train_are_refused(task, jobs):
  cluster = tfps.Cluster({'ps': ['h0:1'], 'worker': ['h1:1'], **jobs}, task)
  with pytest.raises(ValueError, match='BetweenGraphStrategy is for chief and'):
    tfps.BetweenGraphStrategy(cluster)


def test_an_unreachable_ps_is_named():
  cluster = tfps.Cluster(
    {'ps': ['localhost:1'], 'worker': ['localhost:2']}, tfps.Task('worker', 0)
  )
  with pytest.raises(tfps.UnreachableError, match='ps:0 at localhost:1'):
    tfps.BetweenGraphStrategy(cluster, connect_timeout_secs=0.5)
