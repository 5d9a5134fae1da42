"""A hybrid of one worker: where its variables are, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import small
import tfps
from tfps import testing


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


@pytest.mark.parametrize(
  'choice',
  [
    'all on the ps',
    pytest.param('rule', marks=pytest.mark.exhaustive),
    pytest.param('all with the workers', marks=pytest.mark.exhaustive),
  ],
)
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
  examples = small.dataset(strategy.input_context())
  outputs = np.concatenate([model(x).numpy() for x, _ in examples])
  predicted = model.predict(examples, verbose=0)
  np.testing.assert_allclose(predicted, outputs, rtol=1e-5, atol=1e-6)
  assert np.isfinite(model.evaluate(examples, verbose=0))


@pytest.mark.exhaustive
def test_one_worker_takes_batches_of_a_queue(make):
  strategy = make()
  with strategy.scope():
    model = small.model('adam')
    queue = tfps.input.SplitQueue(tfps.input.Ranges(60, 24))
  small.initialize(model)
  model.fit(
    lambda context: queue.dataset(context).map(small.example).batch(small.SIZE),
    verbose=0,
  )
  steps = 60 // small.SIZE
  for found, wanted in zip(
    model.get_weights(), small.alone('adam', steps, 1), strict=True
  ):
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_an_optimizer_that_needs_all_gradients_is_refused(make):
  strategy = make()
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(global_clipnorm=1.0), 'mse')
  with pytest.raises(ValueError, match='the norm of all gradients'):
    model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)


def test_slots_that_only_the_chief_would_restore_are_asked_for(make):
  strategy = make()
  with strategy.scope():
    model = small.model('adam')
  strategy.global_step.assign(30)
  with pytest.raises(ValueError, match='has no slots yet at step 30'):
    strategy.train(small.step_of(model), small.dataset, steps=32)


def test_a_snapshot_without_workers_is_refused(make, tmp_path):
  strategy = make(recovery=tfps.Recovery(tmp_path))
  strategy.surviving(lambda: None)  # the first snapshot
  strategy.close()
  with (
    testing.InProcessCluster(num_workers=1, num_ps=1) as other,
    pytest.raises(ValueError, match='variables of workers that are gone'),
  ):
    tfps.replication.HybridStrategy(
      other.cluster, recovery=tfps.Recovery(tmp_path)
    )


def test_workers_that_could_not_average_gradients_are_refused(monkeypatch):
  monkeypatch.setenv('TFPS_ENCLOSED', '1')
  cluster = tfps.Cluster(
    {'ps': ['h1:1'], 'worker': ['h2:1', 'h3:1']}, tfps.Task('worker', 1)
  )
  with pytest.raises(ValueError, match=r'of 2 workers.*AllReduceStrategy'):
    tfps.replication.HybridStrategy(cluster)
