"""All workers make one update of a step, by the mean of their gradients."""

import collections
import concurrent.futures
import threading
import time

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import alone as alone_lib
from tests.support import sleeps
from tests.support import slopes as slopes_lib
from tests.support import turns
from tests.support import waiting
import tfps
from tfps._compat import replicated_writes
from tfps.server import connection
from tfps.updates.sync import aggregation
from tfps.updates.sync import ps_state
from tfps.variables import partitioners

_WORKERS = 3
_SIZE = 4
_MAX_STEPS = 100
_RNG = np.random.default_rng(0)
_X = _RNG.integers(0, 12, (_SIZE * _WORKERS * _MAX_STEPS, 3))
_Y = _RNG.random((len(_X), 1), dtype='f')

pytestmark = pytest.mark.tfps_cluster(workers=_WORKERS, ps=2)


def _model(optimizer, *, steps_per_execution=1):
  return alone_lib.make_model(
    optimizer,
    lambda: [layers.Dense(6, 'tanh'), layers.Dense(1)],
    steps_per_execution=steps_per_execution,
  )


@pytest.mark.parametrize(
  ('make_optimizer', 'partitioner', 'num_steps'),
  [
    pytest.param(
      lambda: keras.optimizers.SGD(0.05),
      partitioners.FixedShards(2),
      None,
      marks=pytest.mark.exhaustive,
      id='SGD',
    ),
    pytest.param(
      lambda: keras.optimizers.SGD(0.05, 0.9, nesterov=True),
      None,
      None,
      id='momentum',
    ),
    pytest.param(
      lambda: keras.optimizers.Adam(0.05),
      partitioners.FixedShards(2),
      None,
      marks=pytest.mark.exhaustive,
      id='Adam',
    ),
    pytest.param(
      lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1),
      None,
      8,
      marks=pytest.mark.exhaustive,
      id='clipped Adam',
    ),
    pytest.param(
      lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
      partitioners.FixedShards(2),
      8,
      marks=pytest.mark.exhaustive,
      id='scaled SGD',
    ),
  ],
)
def test_fit_is_like_one_process_on_all_batches(
  request, tfps_cluster, make_optimizer, partitioner, num_steps
):
  if num_steps is None:
    num_steps = _MAX_STEPS if request.config.getoption('--exhaustive') else 4
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioner, updates=tfps.updates.Sync()
  )
  with strategy.scope():
    model = _model(make_optimizer())
  number = num_steps * _WORKERS * _SIZE
  x, y = _X[:number], _Y[:number]
  model.fit(x, y, batch_size=_SIZE, shuffle=False, verbose=0)
  sizes = [_WORKERS * _SIZE] * num_steps
  alone = alone_lib.train(_model(make_optimizer()), _X, _Y, sizes)
  alone_lib.assert_same_weights(model, alone)
  assert int(model.optimizer.iterations) == num_steps
  report = strategy.updates_report()
  assert (report.updates, report.late, report.short) == (num_steps, 0, 0)


def _dataset_fn(context):
  own = context.input_pipeline_id
  return tf.data.Dataset.counter(dtype=tf.int64).map(
    lambda i: tf.cast(10 * i + own, tf.float64)
  )


@pytest.mark.exhaustive
@pytest.mark.parametrize('steps_per_execution', [1, 2])
def test_train_makes_each_update_of_the_mean(tfps_cluster, steps_per_execution):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  slopes = slopes_lib.Slopes(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    result = coordinator.train(
      slopes.step,
      _dataset_fn,
      steps=12,
      steps_per_execution=steps_per_execution,
    )
    assert result.step == 12
    mean = 10 * np.arange(12) + np.mean(range(_WORKERS))
    assert float(slopes.number.numpy()) == pytest.approx(-mean.sum())
    report = strategy.updates_report()
    assert (report.updates, report.late, report.short) == (12, 0, 0)
    assert int(slopes.optimizer.iterations) == 12


@pytest.mark.exhaustive
def test_a_second_call_trains_on(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  slopes = slopes_lib.Slopes(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    for steps in (12, 14):
      coordinator.train(slopes.step, _dataset_fn, steps=steps)
      assert strategy.updates_report().updates == steps


@pytest.mark.exhaustive
def test_a_slow_worker_is_late_where_there_is_a_backup(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync(backup_workers=1)
  )
  slopes = slopes_lib.Slopes(strategy)

  def dataset_fn(context):
    own = context.input_pipeline_id

    def sleep():
      time.sleep(0.05 if own == 1 else 0.0)
      return np.float64(1.0)

    return tf.data.Dataset.counter().map(
      lambda _: tf.ensure_shape(tf.numpy_function(sleep, [], tf.float64), [])
    )

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    result = coordinator.train(
      slopes.step, dataset_fn, steps=40, steps_per_execution=2
    )
  assert result.step == 40
  report = strategy.updates_report()
  assert report.updates == 40
  assert report.late > 0
  assert float(slopes.number.numpy()) == -40.0


class _Sloping(keras.Model):
  def __init__(self, slopes):
    super().__init__()
    self._slopes = slopes
    self.built = True

  def train_step(self, batch):
    self._slopes.step(batch)
    return {}


@pytest.mark.exhaustive
@pytest.mark.parametrize('how', ['train', 'fit'])
def test_a_slow_worker_goes_on_while_others_have_nothing_to_do(
  tfps_cluster, how
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync(backup_workers=1)
  )
  slopes = slopes_lib.Slopes(strategy)
  drawn = collections.Counter()

  def dataset_fn(context):
    own = context.input_pipeline_id

    def draw(number):
      # Within an execution, until the others are done with what there is.
      is_slow, before = own == 1 and number % 4 == 1, -1
      while is_slow and before != (before := drawn[0] + drawn[2]):
        time.sleep(0.3)
      drawn[own] += 1
      return np.float64(1.0)

    return tf.data.Dataset.counter().map(
      lambda i: tf.ensure_shape(tf.numpy_function(draw, [i], tf.float64), [])
    )

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    if how == 'train':
      coordinator.in_flight_per_worker = 1
      coordinator.train(
        slopes.step, dataset_fn, steps=12, steps_per_execution=4
      )
    else:
      with strategy.scope():
        model = _Sloping(slopes)
        model.compile(steps_per_execution=4)
      model.fit(dataset_fn, steps_per_epoch=80, verbose=0)
    updates = strategy.updates_report().updates
    assert float(slopes.number.numpy()) == -updates
    assert updates == 12 or how == 'fit'


@pytest.mark.exhaustive
def test_an_epoch_ends_that_does_not_divide_by_workers(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  with strategy.scope():
    model = _model(keras.optimizers.SGD(0.05), steps_per_execution=2)
  history = model.fit(
    _X[: 13 * _SIZE], _Y[: 13 * _SIZE], batch_size=_SIZE, epochs=2, verbose=0
  )
  assert len(history.history['loss']) == 2
  report = strategy.updates_report()
  # 13 batches: 6 at a time for three workers, and one that is alone.
  assert report.updates == 2 * (4 + 1)
  assert report.short == 2
  assert report.late == 0


@pytest.mark.exhaustive
def test_two_optimizers_meet_at_points_of_their_own(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  first, second = slopes_lib.Slopes(strategy), slopes_lib.Slopes(strategy)

  def step(batch):
    first.step(batch)
    second.step(2 * batch)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(step, _dataset_fn, steps=12, steps_per_execution=2)
  mean = (10 * np.arange(12) + np.mean(range(_WORKERS))).sum()
  assert float(first.number.numpy()) == pytest.approx(-mean)
  assert float(second.number.numpy()) == pytest.approx(-2 * mean)


@pytest.mark.exhaustive
def test_who_begins_within_a_step_waits_for_the_next(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  with strategy.scope():
    one, other = tf.Variable(0.0), tf.Variable(0.0)
  sync_session = strategy.sync_session
  may_go_on = threading.Event()

  def go_on(gradient):
    assert may_go_on.wait(60)
    return gradient

  def step(*told):
    sync_step = sync_session.sync_step(*told)
    with sync_step.step(0):
      gradient = tf.constant(1.0)
      sync_step.meet(
        [aggregation.Piece(one, gradient)],
        lambda means: one.assign_add(means[0]),
      )
      gradient = tf.numpy_function(go_on, [gradient], tf.float32)
      gradient = tf.ensure_shape(gradient, [])
      sync_step.meet(
        [aggregation.Piece(other, gradient)],
        lambda means: other.assign_add(means[0]),
      )
    return tf.constant(0)

  @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
  def execution(worker):
    return sync_session.around(step)(worker)

  def execute(worker):
    with tf.device(f'/job:worker/task:{worker}'):
      return execution(tf.constant(worker, tf.int64))

  def waiting_at_first():
    row = ps_state.Point(*sync_session.state.points.numpy()[0].tolist())
    return row.even + row.odd

  for worker in (1, 2):
    sync_session.members.leave_out(worker)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(execute, 0)
    waiting.until(lambda: first.done() or one.numpy() == 1)
    second = pool.submit(execute, 1)
    waiting.until(waiting_at_first)
    may_go_on.set()
    first.result(60)  # as the other is not at this step's second point
    assert other.numpy() == 1
    assert waiting_at_first() == 1
    execute(0)
    second.result(60)
  assert one.numpy() == other.numpy() == 2
  # What it has computed from what has been updated since.
  assert strategy.updates_report().late == 1


def test_how_many_updates_are_left_may_be_known_only_after_a_repair(
  tfps_cluster,
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  sync_session = strategy.sync_session

  def updates_left():  # a repair tells of a rest
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      pool.submit(sync_session.executions.try_to_rest, rest=True).result(20)
    return 5

  sync_session.limit(updates_left)
  sync_session.start()
  version, goal = sync_session.state.points.numpy()[0, :2]
  assert goal - version == 5


@pytest.mark.exhaustive
def test_cuts_do_not_hold_up_workers_that_wait(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    updates=tfps.updates.Sync(),
    recovery=tfps.Recovery(tmp_path, every_secs=0.1),
  )
  slopes = slopes_lib.Slopes(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(slopes.step, _dataset_fn, steps=30, steps_per_execution=3)
  mean = 10 * np.arange(30) + np.mean(range(_WORKERS))
  assert float(slopes.number.numpy()) == pytest.approx(-mean.sum())
  assert strategy.updates_report().updates == 30


@pytest.mark.exhaustive
def test_a_large_variable_may_be_alone_on_a_ps(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  with strategy.scope():
    large = tf.Variable(tf.zeros([1 << 17]))
    optimizer = keras.optimizers.SGD(1.0)

  def step(batch):
    optimizer.apply([large + tf.cast(batch, tf.float32)], [large])

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(step, _dataset_fn, steps=1)
  np.testing.assert_array_equal(large.numpy(), np.full([1 << 17], -1.0))


def test_what_cannot_meet_is_refused(tfps_cluster, monkeypatch):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  slopes = slopes_lib.Slopes(strategy)
  with pytest.raises(ValueError, match='outside of Coordinator'):
    slopes.optimizer.apply([tf.constant(1.0)], [slopes.number])

  def in_a_branch(batch):
    tf.cond(batch > 5, lambda: slopes.step(batch), lambda: None)

  def too_often(batch):
    for _ in range(2):
      slopes.step(batch)

  def without_optimizer(batch):
    slopes.number.assign_sub(batch)

  on_the_chief = tf.Variable(0.0, tf.float64, name='own')

  def elsewhere(batch):
    slopes.optimizer.apply([batch], [on_the_chief])

  monkeypatch.setattr(ps_state, 'MAX_POINTS', 1)  # as tracing takes long
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    for step, complaint in (
      (in_a_branch, 'Apply them outside of it'),
      (too_often, 'more than 1 times. Use fewer optimizers'),
      (without_optimizer, 'no optimizer applies gradients'),
      (elsewhere, 'own.* is on .*/job:chief.*Create it in the strategy'),
    ):
      with pytest.raises(ValueError, match=complaint):
        coordinator.train(step, _dataset_fn, steps=1)
  with pytest.raises(ValueError, match='Leave out prefetch'):
    tfps.ParameterServerStrategy(
      tfps_cluster.cluster,
      updates=tfps.updates.Sync(),
      wire=tfps.Wire(prefetch=1),
    )


class _SlowSGD(keras.optimizers.SGD):
  """Takes its time between the arrival of gradients and the update."""

  def update_step(self, gradient, variable, learning_rate):
    one = tf.cast(sleeps.slow(0.3, gradient), gradient.dtype)
    super().update_step(gradient * one, variable, learning_rate)


def _by_ps(variable):
  """A variable and its replica, by device."""
  both = [variable, replicated_writes.replica_of(variable)]
  return {each.device: each for each in both}


def test_a_step_is_counted_where_its_update_is_made(tfps_cluster, tmp_path):
  # Otherwise, the replica that goes on for a lost ps could have counted a step
  # of whose update it never heard.
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    updates=tfps.updates.Sync(),
    recovery=tfps.Recovery(tmp_path, every_secs=3600, replicas=1),
  )
  slopes = slopes_lib.Slopes(strategy)
  with strategy.scope():
    slopes.optimizer = _SlowSGD(1.0)
  with (
    tfps.Coordinator(strategy, timeout_secs=100) as coordinator,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    numbers, counts = _by_ps(slopes.number), _by_ps(coordinator.global_step)
    assert len(numbers) == 2
    training = pool.submit(
      coordinator.train,
      slopes.step,
      lambda context: tf.data.Dataset.from_tensors(
        tf.constant(1.0, tf.float64)
      ).repeat(),
      steps=3,
    )
    while not training.done():
      for device, count in counts.items():
        counted = int(count.numpy())
        assert -float(numbers[device].numpy()) >= counted, device
    training.result()
    assert float(slopes.number.numpy()) == -3
  strategy.close()


@pytest.mark.exhaustive
def test_the_next_training_begins_anew_after_an_error(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  slopes = slopes_lib.Slopes(strategy)

  def dataset_fn(context):
    last = 10 if context.input_pipeline_id == 1 else 1000
    return tf.data.Dataset.range(last).map(lambda i: tf.cast(i, tf.float64))

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    with pytest.raises(ValueError, match='ran out'):
      coordinator.train(slopes.step, dataset_fn, steps=50)
    before = int(coordinator.global_step.numpy())
    assert before <= 10
    slopes.number.assign(0.0)
    coordinator.train(slopes.step, _dataset_fn, steps=before + 5)
    mean = 10 * np.arange(5) + np.mean(range(_WORKERS))
    assert float(slopes.number.numpy()) == pytest.approx(-mean.sum())


@pytest.mark.parametrize('ends', ['an error', 'the next connection'])
def test_nobody_is_looked_for_after(tfps_cluster, ends):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  before = _looking()
  with tfps.Coordinator(strategy, timeout_secs=60):
    attempt = strategy.sync_session.attempt(1)

  def execute(*args):
    (looking,) = _looking() - before
    assert strategy.sync_session.executions.are_running
    if ends == 'the next connection':
      connection.stop_all()
      assert not looking.is_alive()
    raise ValueError('not one of the cluster')

  on_worker = tf.device('/job:worker/task:0')
  with on_worker, pytest.raises(ValueError, match='not one of the cluster'):
    attempt(execute, *attempt.args)
  assert not strategy.sync_session.executions.are_running
  waiting.until(lambda: not _looking() - before)


def _looking():
  return {t for t in threading.enumerate() if t.name == 'tfps-failure-detector'}


@pytest.mark.parametrize(
  'log_every_secs', turns.rarely([3600.0, 0.0], but=[0.0])
)
def test_metrics_are_means_over_all_workers(tfps_cluster, log_every_secs):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  with strategy.scope():
    weight = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])

  def own_index(context):
    number = float(context.input_pipeline_id)
    return tf.data.Dataset.from_tensors(number).repeat()

  def step(own):
    optimizer.apply_gradients([(own, weight)])
    return {'own': own}

  seen = []
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    result = coordinator.train(
      step,
      own_index,
      steps=30,
      steps_per_execution=10,
      log_every_secs=log_every_secs,
      hooks=[lambda progress: seen.append(progress)],
    )
  counted = [p for p in seen if p.metrics]
  assert {p.num_steps for p in counted} == {10}
  # With a line for each execution, the last one's metrics are one worker's.
  expected = [1.0] if log_every_secs else [0.0, 1.0, 2.0]
  assert result.metrics['own'] in expected
