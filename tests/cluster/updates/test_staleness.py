"""How old gradients are when they are applied, and what that does to them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps._compat import replicated_writes

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

both = pytest.mark.parametrize(
  'make_strategy',
  [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
  ids=['coordinator', 'between graphs'],
)


class _Ones:
  """Numbers on two ps whose gradients are 1 in each step."""

  def __init__(
    self,
    strategy,
    make_optimizer=lambda: keras.optimizers.SGD(1.0),
    shape=(),
  ):
    with strategy.scope():
      self.numbers = [
        tf.Variable(tf.zeros(shape), name=f'number_{i}') for i in range(2)
      ]
      self.optimizer = make_optimizer()
      self.optimizer.build(self.numbers)

  def step(self, batch, meanwhile=None):
    del batch
    with tf.GradientTape() as tape:
      loss = tf.add_n([tf.reduce_sum(number) for number in self.numbers])
    gradients = tape.gradient(loss, self.numbers)
    if meanwhile is not None:  # once the numbers have been read
      done = tf.numpy_function(meanwhile, [loss], tf.float32)
      with tf.control_dependencies([done]):
        gradients = [tf.identity(gradient) for gradient in gradients]
    self.optimizer.apply(gradients, self.numbers)


def _updating_by_others(strategy, *times):
  """Returns a function that counts updates of other workers on each ps."""

  def update(value):
    for count, number in zip(strategy.staleness._counts, times, strict=True):
      count.assign_add(number)
    return value

  return update


def _train(strategy, ones, steps, *, steps_per_execution):
  arguments = {'steps': steps, 'steps_per_execution': steps_per_execution}
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    strategy.train(ones.step, _zeros, **arguments)
    return
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.in_flight_per_worker = 1
    coordinator.train(ones.step, _zeros, **arguments)


@pytest.mark.parametrize(
  'make_optimizer',
  [
    pytest.param(
      lambda: keras.optimizers.SGD(1.0), marks=pytest.mark.exhaustive
    ),
    lambda: keras.optimizers.Adam(0.1),
  ],
  ids=['SGD', 'Adam'],
)
@both
def test_every_gradient_is_counted(tfps_cluster, make_strategy, make_optimizer):
  strategy = make_strategy(tfps_cluster.cluster)
  ones = _Ones(strategy, make_optimizer)
  _train(strategy, ones, 60, steps_per_execution=2)
  report = strategy.updates_report()
  assert report.updates == sum(report.staleness) == 60
  if make_strategy is tfps.BetweenGraphStrategy:  # there is one worker
    assert report.staleness[0] == 60
    assert report.mean_staleness == 0
  else:
    assert sum(report.staleness[:3]) > 0


class _OwnSgd(keras.optimizers.SGD):
  """An optimizer without a rule, as each subclass is."""


@pytest.mark.parametrize(
  ('make_strategy', 'make_optimizer', 'how'),
  [
    pytest.param(
      tfps.ParameterServerStrategy,
      lambda: _OwnSgd(1.0),
      {},
      id='coordinator, no rule',
    ),
    pytest.param(
      tfps.BetweenGraphStrategy,
      lambda: _OwnSgd(1.0),
      {'wire': tfps.Wire(fuse=False)},
      id='between graphs, no rule, not fused',
    ),
    pytest.param(
      tfps.BetweenGraphStrategy,
      lambda: keras.optimizers.LossScaleOptimizer(_OwnSgd(1.0)),
      {},
      id='between graphs, no rule, in a branch',
    ),
    pytest.param(
      tfps.ParameterServerStrategy,
      lambda: keras.optimizers.SGD(1.0),
      {'wire': tfps.Wire(fuse=False)},
      id='coordinator, not fused',
    ),
  ],
)
def test_gradients_are_counted_however_they_are_applied(
  tfps_cluster, make_strategy, make_optimizer, how
):
  strategy = make_strategy(tfps_cluster.cluster, **how)
  ones = _Ones(strategy, make_optimizer)
  _train(strategy, ones, 12, steps_per_execution=3)
  report = strategy.updates_report()
  assert report.updates == sum(report.staleness) == 12


@pytest.mark.parametrize('make', [_OwnSgd, keras.optimizers.SGD])
@pytest.mark.parametrize(
  ('how', 'shape'),
  [
    ({}, ()),
    ({}, (100_000,)),  # sent apart from the step
    ({'wire': tfps.Wire(fuse=False)}, ()),
  ],
  ids=['fused', 'large', 'not fused'],
)
def test_staleness_is_counted_until_gradients_come(
  tfps_cluster, how, shape, make
):
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster, **how)
  ones = _Ones(strategy, lambda: make(1.0), shape)

  def step(batch):
    ones.step(batch, meanwhile=_updating_by_others(strategy, 3, 3))

  strategy.train(step, _zeros, steps=4, steps_per_execution=2)
  assert strategy.updates_report().staleness[:5] == (0, 0, 0, 4, 0)


def test_a_rate_that_cannot_be_divided_is_refused(tfps_cluster):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Async(divide_rate=True)
  )
  ones = _Ones(strategy, lambda: _OwnSgd(1.0, name='mine'))
  with pytest.raises(ValueError, match=r'mine: _OwnSgd .*divide_rate'):
    strategy.train(ones.step, _zeros, steps=1)


def test_a_rate_is_not_divided_by_an_unknown_staleness(tfps_cluster):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Async(divide_rate=True)
  )
  ones = _Ones(strategy, lambda: keras.optimizers.SGD(1.0, name='mine'))
  for apply in (ones.step, tf.function(ones.step)):
    with pytest.raises(ValueError, match=r'mine: .*outside of .*divide_rate'):
      apply(0)


@pytest.mark.parametrize(
  'prefetch', [pytest.param(1, marks=pytest.mark.exhaustive), 2]
)
def test_what_is_prefetched_is_stale(tfps_cluster, prefetch):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster, wire=tfps.Wire(prefetch=prefetch)
  )
  ones = _Ones(strategy)
  _train(strategy, ones, 20, steps_per_execution=5)
  found = strategy.updates_report().staleness
  # Each of four executions begins with parameters of its time.
  assert found[: prefetch + 1] == (*[4] * prefetch, 20 - 4 * prefetch)


@pytest.mark.parametrize(
  'updates',
  [
    tfps.updates.Async(divide_rate=True),
    pytest.param(
      tfps.updates.BoundedStaleness(8, divide_rate=True),
      marks=pytest.mark.exhaustive,
    ),
  ],
  ids=['Async', 'BoundedStaleness'],
)
def test_learning_rates_are_divided_by_staleness(tfps_cluster, updates):
  # One worker's gradients grow stale by other updates in between.
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster, updates=updates)
  ones = _Ones(strategy)

  def step_among_others(batch):
    ones.step(batch, meanwhile=_updating_by_others(strategy, 4, 4))

  strategy.train(ones.step, _zeros, steps=3)
  assert [float(number.numpy()) for number in ones.numbers] == [-3.0, -3.0]
  strategy.train(step_among_others, _zeros, steps=4)
  for number in ones.numbers:
    assert float(number.numpy()) == pytest.approx(-3 - 1 / 4)
  assert strategy.updates_report().staleness[:5] == (3, 0, 0, 0, 1)


@pytest.mark.parametrize(
  'make_optimizer',
  [lambda: keras.optimizers.SGD(1.0), lambda: keras.optimizers.Adam(0.1)],
  ids=['SGD', 'Adam'],
)
def test_replicas_get_the_rate_of_what_they_replicate(
  tfps_cluster, tmp_path, make_optimizer
):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster,
    updates=tfps.updates.Async(divide_rate=True),
    recovery=tfps.Recovery(tmp_path, replicas=1),
  )
  ones = _Ones(strategy, make_optimizer, shape=(64,))
  update_by_others = _updating_by_others(strategy, 2, 5)

  strategy.train(
    lambda batch: ones.step(batch, meanwhile=update_by_others), _zeros, steps=4
  )
  values = [number.numpy() for number in ones.numbers]
  for number, value in zip(ones.numbers, values, strict=True):
    replica = replicated_writes.replica_of(number)
    np.testing.assert_array_equal(replica.numpy(), value)
  assert values[0][0] != values[1][0]  # each by the staleness on its own ps
  strategy.close()


def _zeros(context):
  del context
  return tf.data.Dataset.from_tensors(0).repeat()
