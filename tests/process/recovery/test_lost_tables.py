"""Tables keyed by any id after the loss of a ps that has some of the rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import losses
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2, processes=True)

_STEPS, _NEW = 40, 120


def _batches(context):
  """Each step has new keys, and one that all have."""
  new = tf.range(_NEW, dtype=tf.int64)
  return (
    tf.data.Dataset.range(_STEPS)
    .repeat()
    .map(lambda step: tf.concat([[-1], step * _NEW + new], 0))
  )


def _rare(*case):
  return pytest.param(*case, marks=pytest.mark.exhaustive)


_EVICTS = {'eviction': tfps.embeddings.Lru(10**6)}


@pytest.mark.parametrize(
  ('strategy_class', 'lost', 'replicas', 'policies'),
  [
    (tfps.ParameterServerStrategy, 0, 0, {'memory_bytes': 4096}),
    _rare(tfps.ParameterServerStrategy, 1, 1, _EVICTS),
    _rare(tfps.replication.InGraphStrategy, 0, 0, {'memory_bytes': 4096}),
    _rare(tfps.replication.InGraphStrategy, 1, 1, _EVICTS),
  ],
)
def test_no_key_is_lost_or_doubled(
  processes, tmp_path, strategy_class, lost, replicas, policies
):
  policies = dict(policies)
  if memory_bytes := policies.pop('memory_bytes', None):
    policies['storage'] = tfps.embeddings.Storage(
      memory_bytes, str(tmp_path / 'rows')
    )
  strategy = strategy_class(
    processes.cluster,
    recovery=tfps.Recovery(tmp_path, every_secs=0.5, replicas=replicas),
  )
  with strategy.scope():
    table = tfps.embeddings.Table(1, 'zeros', **policies)
    table.build()
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(table.trainable_variables)

  def step(keys):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(table.lookup(keys))
    variables = table.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  with losses.trainer(strategy) as trainer:
    trainer.train(
      step,
      _batches,
      steps=_STEPS * 3,
      steps_per_execution=2,
      hooks=[losses.At(_STEPS // 2, losses.lose(processes, ('ps', lost)))],
    )
    keys = np.r_[-1, np.arange(_STEPS * _NEW)]
    rows = -table.lookup(keys, training=False).numpy()[:, 0]
    stored = np.concatenate(
      [
        table.keys_0.numpy()[1024 : table.counts_0.numpy()[0]],
        table.keys_1.numpy()[1024 : table.counts_1.numpy()[0]],
      ]
    )
    repeated = strategy.recovery_report().steps_repeated
    assert len(stored) == len(np.unique(stored)) == table.num_keys()
    assert table.num_evicted() == table.num_late() == 0
    assert set(stored) <= set(keys)
    assert _STEPS * 3 <= rows[0] <= _STEPS * 3 + repeated
    assert abs(rows[1:].sum() / _NEW - rows[0]) <= repeated
