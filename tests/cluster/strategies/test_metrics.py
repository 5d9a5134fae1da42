"""Metrics that strategies, their loops and tables report."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import samples
import tfps
from tfps.monitor import families
from tfps.monitor import registry as registry_lib

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_STEPS = 30
_BATCH = 4


@pytest.fixture
def registry(monkeypatch):
  """A new registry, which is read."""
  registry = registry_lib.Registry()
  registry.is_read = True
  monkeypatch.setattr(registry_lib, 'of_process', lambda: registry)
  return registry


def _train(trainer, strategy, **kwargs):
  with strategy.scope():
    weights = tf.Variable(tf.zeros([3]), name='weights')
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weights])

  def step(batch):
    del batch
    optimizer.apply([tf.ones([3])], [weights])
    return {'loss': tf.constant(0.5)}

  def dataset(context):
    del context
    return tf.data.Dataset.range(100).repeat().batch(_BATCH)

  return trainer.train(
    step, dataset, steps=_STEPS, steps_per_execution=5, **kwargs
  )


def test_a_coordinator_reports_what_each_worker_has_done(
  tfps_cluster, registry
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    _train(coordinator, strategy)
    steps = samples.values(registry, families.STEPS)
    assert set(steps) <= {('worker:0',), ('worker:1',)}
    assert sum(steps.values()) == _STEPS
    executions = samples.values(registry, families.EXECUTIONS)
    assert {task: 5 * number for task, number in executions.items()} == steps
    examples = samples.values(registry, families.EXAMPLES)
    assert examples == {task: _BATCH * n for task, n in steps.items()}
    chief = ('chief:0',)
    assert samples.values(registry, families.GLOBAL_STEP) == {chief: _STEPS}
    assert samples.values(registry, families.UPDATES) == {chief: _STEPS}
    (staleness,) = samples.values(registry, families.STALENESS).values()
    assert staleness.counts[-1] == _STEPS
    metrics = samples.values(registry, families.STEP_METRIC)
    assert metrics == {('chief:0', 'loss'): 0.5}
    transferred = samples.values(registry, families.TRANSFERRED)
    report = strategy.wire_report()
    assert transferred == {
      ('chief:0', f'ps:{ps}', direction): number
      for direction, by_ps in (('pull', report.pulled), ('push', report.pushed))
      for ps, number in enumerate(by_ps)
    }
    assert samples.values(registry, families.QUEUED) == {chief: 0}
    assert samples.values(registry, families.IN_FLIGHT) == {chief: 0}
    parts = {part for _, part in samples.values(registry, families.LOOP)}
    assert parts == {'prepare', 'execute', 'report', 'save'}


def test_without_readers_no_examples_are_counted(tfps_cluster, registry):
  registry.is_read = False
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    seen = []
    _train(coordinator, strategy, hooks=[seen.append])
  assert samples.values(registry, families.EXAMPLES) == {}
  assert {name for progress in seen for name in progress.metrics} == {'loss'}


def test_fit_counts_steps_of_training_only(tfps_cluster, registry):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile('sgd', 'mse', steps_per_execution=2)
  x, y = np.ones([24, 2], 'f'), np.ones([24, 1], 'f')
  model.fit(x, y, batch_size=4, epochs=2, verbose=0)
  model.evaluate(x, y, batch_size=4, verbose=0)
  steps = samples.values(registry, families.STEPS)
  assert set(steps) <= {('worker:0',), ('worker:1',)}
  assert sum(steps.values()) == 12
  assert ('chief:0', 'loss') in samples.values(registry, families.STEP_METRIC)
  strategy.close()


def test_a_table_reports_its_keys(tfps_cluster, registry):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    table = tfps.embeddings.Table(
      1,
      admission=tfps.embeddings.Counter(2),
      eviction=tfps.embeddings.Lru(10),
      name='ads',
    )
    table.build()
  for _ in range(2):
    table.lookup(tf.range(40, dtype=tf.int64), training=True)
  ads = ('chief:0', 'ads')
  keys = table.num_keys()
  assert samples.values(registry, families.TABLE_KEYS) == {ads: keys}
  assert samples.values(registry, families.EVICTED) == {
    ads: table.num_evicted()
  }
  assert samples.values(registry, families.ADMITTED) == {ads: 40}
  assert samples.values(registry, families.REFUSED) == {ads: 40}
  strategy.close()


def test_tables_are_told_apart_by_their_layers(registry):
  layers = [
    tfps.embeddings.Embedding(1, name=name) for name in ('ads', 'users')
  ]
  for number, layer in enumerate(layers, 3):
    layer(np.arange(number), training=True)
  found = samples.values(registry, families.TABLE_KEYS)
  assert {label: keys for (_, label), keys in found.items()} == {
    'ads': 3,
    'users': 4,
  }
  assert [layer.weights[0].path for layer in layers] == [
    'ads/table/rows_0',
    'users/table/rows_0',
  ]


def test_a_table_with_storage_reports_where_its_rows_are(
  tfps_cluster, registry, tmp_path
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  frame_bytes = 2 * 4
  with strategy.scope():
    table = tfps.embeddings.Table(
      2,
      storage=tfps.embeddings.Storage(20 * frame_bytes, str(tmp_path)),
      name='stored',
    )
    table.build()
  table.lookup(tf.range(1000, dtype=tf.int64), training=True)
  memory, file = (('chief:0', 'stored', where) for where in ('memory', 'file'))
  rows = {memory: 20, file: 980}
  assert samples.values(registry, families.TABLE_ROWS) == rows
  num_bytes = samples.values(registry, families.TABLE_BYTES)
  assert num_bytes[memory] == 20 * frame_bytes
  assert num_bytes[file] >= 980 * frame_bytes
  moves = {memory: 0, file: 0}
  assert samples.values(registry, families.TABLE_MOVES) == moves
  strategy.close()


def test_a_trainer_between_graphs_reports_its_own_steps(registry):
  strategy = tfps.BetweenGraphStrategy(tfps.Cluster.local())
  _train(strategy, strategy)
  assert samples.values(registry, families.STEPS) == {('chief:0',): _STEPS}
  assert samples.values(registry, families.UPDATES) == {('chief:0',): _STEPS}
  assert samples.values(registry, families.EXAMPLES) == {
    ('chief:0',): _BATCH * _STEPS
  }
  strategy.close()
