"""What a hybrid's variables are where, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.replication import small
import tfps
from tfps.variables import hybrid_placement


def _of(num_bytes, shape=(10,), *, is_table=False, name='kernel'):
  return hybrid_placement.Description(name, shape, num_bytes, is_table)


@pytest.mark.parametrize(
  ('num_workers', 'num_ps', 'description', 'workers', 'ps'),
  [
    (1, 1, _of(100), 0, 200),
    (2, 1, _of(100), 100, 400),
    (2, 2, _of(100), 100, 200),
    (4, 1, _of(100), 150, 800),
    (4, 8, _of(100), 150, 200),
    (4, 2, _of(4000, (1000, 1), is_table=True), 6000, 2 * 2 * 5 * (4 + 8)),
    (2, 2, _of(12, (3, 1), is_table=True), 12, 2 * 3 * (4 + 8)),
    (2, 1, _of(0, None, is_table=True), 0, 0),
  ],
)
def test_costs_are_the_bytes_on_the_busiest_link(
  num_workers, num_ps, description, workers, ps
):
  rule = hybrid_placement.Rule(num_workers, num_ps, rows_per_step=5)
  assert rule.costs(description) == hybrid_placement.Costs(workers, ps)
  cheaper = 'ps' if ps < workers else 'workers'
  assert rule.choose(description) == cheaper


def test_a_report_tells_costs_and_choices():
  rule = hybrid_placement.Rule(4, 2, rows_per_step=5)
  chooser = hybrid_placement.Chooser(rule, None)
  chooser(_of(4000, (1000, 1), is_table=True, name='users'))
  chooser(_of(100, name='kernel'))
  first, *lines = str(hybrid_placement.HybridReport(chooser.made)).splitlines()
  assert first.split() == [
    'variable',
    'where',
    'bytes',
    *['in', 'a', 'ring', 'by', 'ps'],
  ]
  assert [line.split() for line in lines] == [
    ['users', 'ps', '4,000', '6,000', '240'],
    ['kernel', 'workers', '100', '150', '400'],
  ]


def test_a_choice_that_is_none_is_told():
  chooser = hybrid_placement.Chooser(
    hybrid_placement.Rule(2, 1, 5), lambda description: 'gpu'
  )
  with pytest.raises(ValueError, match="choose: gave 'gpu' for kernel"):
    chooser(_of(100))


@pytest.fixture
def make(tfps_cluster):
  def make(**kwargs):
    return tfps.replication.HybridStrategy(tfps_cluster.cluster, **kwargs)

  return make


def _is_on_ps(variable):
  return 'job:ps' in variable.value.device


def test_slots_are_where_their_variables_are(make):
  choice = {'embeddings': 'ps', 'kernel': 'workers', 'bias': 'ps'}
  strategy = make(choose=lambda description: choice[description.name])
  with strategy.scope():
    model = small.model('adam')
    model.optimizer.build(model.trainable_variables)
  for variable in model.trainable_variables:
    assert _is_on_ps(variable) == (choice[variable.name] == 'ps')
  for variable in model.optimizer.variables:
    *_, name = variable.name.split('_')
    if name in choice:
      assert _is_on_ps(variable) == (choice[name] == 'ps')
  assert not _is_on_ps(model.optimizer.iterations)
  assert len(strategy.hybrid_report().choices) == 5


@pytest.mark.parametrize('choice', small.CHOICES)
def test_one_worker_trains_as_a_single_process(make, choice):
  strategy = make(choose=small.CHOICES[choice])
  with strategy.scope():
    model = small.model('adam')
  small.initialize(model)
  model.fit(
    small.dataset(strategy.input_context()), steps_per_epoch=8, verbose=0
  )
  for found, wanted in zip(
    model.get_weights(), small.alone('adam', 8, 1), strict=True
  ):
    np.testing.assert_allclose(found, wanted, atol=1e-4)
  evaluated = model.evaluate(small.dataset(strategy.input_context()), verbose=0)
  assert np.isfinite(evaluated)


def test_one_worker_takes_batches_of_a_queue(make):
  strategy = make()
  with strategy.scope():
    model = small.model('adam')
    queue = tfps.input.SplitQueue(tfps.input.Ranges(small.NUM_EXAMPLES, 66))
  small.initialize(model)
  model.fit(
    lambda context: queue.dataset(context).map(small.example).batch(small.SIZE),
    verbose=0,
  )
  steps = small.NUM_EXAMPLES // small.SIZE
  for found, wanted in zip(
    model.get_weights(), small.alone('adam', steps, 1), strict=True
  ):
    np.testing.assert_allclose(found, wanted, atol=1e-4)


REFUSED = {
  'the norm of all gradients': lambda: keras.optimizers.SGD(
    global_clipnorm=1.0
  ),
  'averages weights': lambda: keras.optimizers.SGD(use_ema=True),
  'accumulates gradients': lambda: keras.optimizers.SGD(
    gradient_accumulation_steps=2
  ),
  'all variables share': keras.optimizers.Nadam,
  'scales the loss': lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD()
  ),
}


@pytest.mark.parametrize('complaint', REFUSED)
def test_optimizers_that_need_all_gradients_are_refused(make, complaint):
  strategy = make()
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(REFUSED[complaint](), 'mse')
  with pytest.raises(ValueError, match=complaint):
    model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)
