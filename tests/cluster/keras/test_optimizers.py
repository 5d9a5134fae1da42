"""Keras' optimizers on the ps, under both strategies."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
from tests.support import versions
import tfps
import tfps.keras
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_optimizers = keras.optimizers

_ALL = {
  'SGD': lambda: _optimizers.SGD(0.1),
  'SGD-momentum': lambda: _optimizers.SGD(0.1, momentum=0.9),
  'SGD-nesterov': lambda: _optimizers.SGD(0.1, momentum=0.9, nesterov=True),
  'Adagrad': lambda: _optimizers.Adagrad(0.1),
  'Adadelta': lambda: _optimizers.Adadelta(0.1),
  'RMSprop': lambda: _optimizers.RMSprop(0.1),
  'RMSprop-centered': lambda: _optimizers.RMSprop(
    0.1, momentum=0.5, centered=True
  ),
  'Ftrl': lambda: _optimizers.Ftrl(0.1),
  'Adam': lambda: _optimizers.Adam(0.1),
  'AMSGrad': lambda: _optimizers.Adam(0.1, amsgrad=True),
  'AdamW': lambda: _optimizers.AdamW(0.1),
  'Adamax': lambda: _optimizers.Adamax(0.1),
  'Nadam': lambda: _optimizers.Nadam(0.1),
  'Lion': lambda: _optimizers.Lion(0.1),
  'Adafactor': lambda: _optimizers.Adafactor(0.1, weight_decay=0.01),
  'Lamb': lambda: _optimizers.Lamb(0.1, weight_decay=0.01),
  'Muon': lambda: _optimizers.Muon(0.1),
  'ScheduleFreeAdamW': lambda: _optimizers.ScheduleFreeAdamW(0.1),
}

_OPTIONS = {
  'clipnorm': lambda: _optimizers.Adam(0.1, clipnorm=0.5),
  'clipvalue': lambda: _optimizers.Adam(0.1, clipvalue=0.5),
  'global_clipnorm': lambda: _optimizers.Adam(0.1, global_clipnorm=0.5),
  'weight_decay': lambda: _optimizers.SGD(0.1, weight_decay=0.02),
  'ema': lambda: _optimizers.Adam(
    0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
  ),
  'accumulation': lambda: _optimizers.Adam(
    0.1, gradient_accumulation_steps=2, clipnorm=0.5
  ),
  'accumulation-ema': lambda: _optimizers.SGD(
    0.1,
    gradient_accumulation_steps=2,
    use_ema=True,
    ema_momentum=0.5,
    ema_overwrite_frequency=2,
  ),
  'schedule': lambda: _optimizers.Adam(
    _optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
  ),
  'loss_scale': lambda: _optimizers.LossScaleOptimizer(
    _optimizers.Adam(0.1), initial_scale=4.0, dynamic_growth_steps=2
  ),
  'loss_scale_factor': lambda: _optimizers.Adam(0.1, loss_scale_factor=4.0),
  'multi': lambda: _optimizers.MultiOptimizer(
    lambda variable: (
      _ALL['Adam']() if 'kernel' in variable.path else _ALL['SGD']()
    )
  ),
}

_RANDOM = np.random.default_rng(0)
_START = {
  'kernel': _RANDOM.normal(size=[5, 3]).astype('f'),
  'bias': _RANDOM.normal(size=[4]).astype('f'),
}
_GRADIENTS = [
  [_RANDOM.normal(size=v.shape).astype('f') for v in _START.values()]
  for _ in range(4)
]
_CASES = {**_ALL, **_OPTIONS}
# Whose variables and operations others have, too.
_RARELY = {
  *('SGD-nesterov', 'Adadelta', 'RMSprop', 'AMSGrad', 'AdamW', 'Adamax'),
  *('Lion', 'Lamb', 'ScheduleFreeAdamW', 'clipnorm', 'clipvalue', 'ema'),
  *('weight_decay', 'accumulation', 'loss_scale_factor'),
  *('SGD', 'Adagrad', 'RMSprop-centered'),
}

# Since when there are these, and work in a single process.
_SINCE = {'Muon': (3, 13), 'ScheduleFreeAdamW': (3, 14), 'multi': (3, 15)}


def _coordinated(cluster, partitioner):
  strategy = tfps.ParameterServerStrategy(cluster, partitioner)
  coordinator = tfps.Coordinator(strategy, timeout_secs=60)

  def function(step):
    @tf.function
    def on_worker(*args):
      strategy.run(step, args)

    def run(*args):
      coordinator.schedule(on_worker, args=args)
      coordinator.join()

    return run

  return strategy, function


def _between_graph(cluster, partitioner):
  strategy = tfps.BetweenGraphStrategy(cluster, partitioner)
  return strategy, tf.function


_STRATEGIES = {'coordinated': _coordinated, 'between-graph': _between_graph}


def _each_once():
  """All optimizers, by one kind of training after the other."""
  cases = {name: name for name in _CASES}
  ways = {s: (s,) for s in _STRATEGIES}
  for case in turns.by_turns(cases, ways, rarely=_RARELY):
    since = versions.needs_keras(*_SINCE.get(case.values[-1], (3, 10)))
    yield pytest.param(*case.values, id=case.id, marks=[*case.marks, since])


by_both = pytest.mark.parametrize('training', _STRATEGIES, indirect=True)
coordinated = pytest.mark.parametrize(
  'training',
  turns.rarely(list(_STRATEGIES), but=['coordinated']),
  indirect=True,
)


def _shard_matrices(shape, dtype, axis=0):
  """So that a model has variables of both kinds."""
  num_shards = 2 if len(shape) > 1 else 1
  return partitioners.FixedShards(num_shards)(shape, dtype, axis)


@pytest.fixture
def training(request, tfps_cluster):
  return _STRATEGIES[request.param](tfps_cluster.cluster, _shard_matrices)


def _made(make):
  variables = [
    keras.Variable(value, name=name) for name, value in _START.items()
  ]
  optimizer = make()
  optimizer.build(variables)
  return optimizer, variables


def _train(function, optimizer, variables):
  step = function(
    lambda *gradients: optimizer.apply(list(gradients), variables)
  )
  for gradients in _GRADIENTS:
    step(*map(tf.constant, gradients))
  return [v.numpy() for v in [*variables, *optimizer.variables]]


@functools.cache
def _values_in_one_process(name):
  return _train(tf.function, *_made(_CASES[name]))


@pytest.mark.parametrize(
  ('training', 'name'), list(_each_once()), indirect=['training']
)
def test_values_are_those_of_one_process(training, name):
  strategy, function = training
  with strategy.scope():
    optimizer, variables = _made(_CASES[name])
  trained = _train(function, optimizer, variables)
  expected = _values_in_one_process(name)
  for ours, theirs in zip(trained, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def _devices(variable):
  shards = getattr(variable.value, 'variables', [variable.value])
  return [shard.device for shard in shards]


def _bytes_by_ps(variables):
  totals = [0, 0]
  for variable in variables:
    for shard in getattr(variable.value, 'variables', [variable.value]):
      ps = tf.DeviceSpec.from_string(shard.device).task
      totals[ps] += shard.shape.num_elements() * shard.dtype.size
  return totals


@by_both
@pytest.mark.parametrize('name', ['AMSGrad', 'accumulation-ema'])
def test_slots_are_beside_what_they_belong_to(training, name):
  strategy, _ = training
  with strategy.scope():
    before = strategy.placement_report().num_bytes
    optimizer, variables = _made(_CASES[name])
    after = strategy.placement_report().num_bytes
  assert len(_devices(variables[0])) == 2
  slots = [v for v in optimizer.variables if v.shape.rank]
  assert len(slots) >= 2 * len(variables)
  for slot in slots:
    (owner,) = (v for v in variables if v.name in slot.name)
    assert _devices(slot) == _devices(owner)
  added = [b - a for a, b in zip(before, after, strict=True)]
  assert added == _bytes_by_ps([*variables, *optimizer.variables])


@by_both
def test_a_gradient_goes_without_waiting_for_others(training):
  strategy, _ = training
  with strategy.scope():
    optimizer, variables = _made(_ALL['SGD'])

    @tf.function
    def step(*gradients):
      strategy.run(lambda: optimizer.apply(list(gradients), variables))

    traced = step.get_concrete_function(*map(tf.constant, _GRADIENTS[0]))
  operations = traced.graph.get_operations()
  assert any(op.type == 'ResourceApplyGradientDescent' for op in operations)
  # It gives nothing before it has got all that it is given.
  assert not any(op.type == 'IdentityN' for op in operations)


def _second_change(function, optimizer, variables):
  """What a step changes that has a gradient for the last row only."""
  step = function(
    lambda values, row: optimizer.apply(
      [tf.IndexedSlices(values, row, tf.constant([5, 3])), tf.zeros([4])],
      variables,
    )
  )
  step(tf.ones([5, 3]), tf.range(5))
  before = variables[0].numpy()
  step(tf.ones([1, 3]), tf.constant([4]))
  return (variables[0].numpy() != before).any(axis=1).tolist()


@coordinated
def test_a_lazy_optimizer_leaves_rows_without_a_gradient_alone(training):
  strategy, function = training
  with strategy.scope():
    diligent = _made(_ALL['Adam'])
    lazy = _made(lambda: tfps.keras.optimizers.lazy(_ALL['Adam']()))
  assert _second_change(function, *diligent) == [True] * 5
  assert _second_change(function, *lazy) == [False] * 4 + [True]


def test_only_optimizers_with_a_rule_can_be_lazy():
  with pytest.raises(ValueError, match=r'Lamb.* is not one of SGD, '):
    tfps.keras.optimizers.lazy(_optimizers.Lamb())
