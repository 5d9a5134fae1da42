"""Trains on several wires until a ps dies; prints what that raises, as JSON."""

import json
from typing import Any

import tensorflow as tf

import tfps

_ENCODED = tfps.Wire(
  pull=tfps.codecs.Int8(), push=tfps.codecs.Int8(), prefetch=1
)


def _train(cluster: Any, wire: tfps.Wire) -> str:
  strategy = tfps.ParameterServerStrategy(cluster.cluster, wire=wire)
  with strategy.scope():
    variables = [tf.Variable(tf.zeros([500, 500])) for _ in range(4)]

  def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
    total = tf.add_n([tf.reduce_sum(v) for v in variables]) + batch
    for variable in variables:
      variable.assign_add(tf.fill(variable.shape, total))
    return {'total': total}

  def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    del context
    return tf.data.Dataset.from_tensors(0.0).repeat()

  def kill(progress: Any) -> None:
    if progress.moment == 'step' and progress.step >= 8:
      cluster.kill('ps', 1)

  coordinator = tfps.Coordinator(strategy, timeout_secs=60)
  try:
    coordinator.train(
      step, batches, steps=100_000, steps_per_execution=4, hooks=[kill]
    )
  except tf.errors.OpError as error:
    return type(error).__name__
  return 'nothing'


def main() -> None:
  found = []
  with tfps.testing.ProcessCluster(num_workers=1, num_ps=2) as cluster:
    for wire in (tfps.Wire(fuse=False), tfps.Wire(), _ENCODED):
      cluster.heal()
      found.append(_train(cluster, wire))
  print(json.dumps(found), flush=True)


if __name__ == '__main__':
  main()
