"""A task of TensorFlow Recommenders Addons, with tables keyed by any id.

Its tables need a session of TensorFlow 1 where there are several workers: under
`ParameterServerStrategy` it trains with one. The batches of `workloads` come
from memory, so that it meets new keys only before it is measured.

Usage: tfra.py MODEL FOLDER, with TF_CONFIG.
"""

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de

from benchmarks import orders
from benchmarks import workloads

_V1 = tf.compat.v1


def _batch(sizes: workloads.Clicks, worker: int) -> tuple[tf.Tensor, tf.Tensor]:
  batches = sizes.batches(worker)
  columns = tuple(map(np.stack, zip(*batches, strict=True)))
  dataset = tf.data.Dataset.from_tensor_slices(columns).repeat().prefetch(2)
  batch: tuple[tf.Tensor, tf.Tensor] = _V1.data.make_one_shot_iterator(
    dataset
  ).get_next()
  return batch


def _rows(
  sizes: workloads.Clicks, number: int, ids: tf.Tensor, ps: list[str]
) -> tf.Tensor:
  """The rows of the table of a number."""
  table = de.get_variable(
    f'table_{number}',
    tf.int64,
    tf.float32,
    sizes.width,
    devices=ps,
    initializer=tf.random_uniform_initializer(-0.05, 0.05),
  )
  rows: tf.Tensor = de.embedding_lookup_unique(table, ids, name='rows')
  return rows


def _loss(
  sizes: workloads.Clicks, ids: tf.Tensor, clicked: tf.Tensor, ps: list[str]
) -> tf.Tensor:
  columns = [ids] if sizes.num_tables == 1 else tf.unstack(ids, axis=1)
  x = tf.concat(
    [_rows(sizes, i, column, ps) for i, column in enumerate(columns)], -1
  )
  for i, size in enumerate((sizes.hidden, 1)):
    kernel = _V1.get_variable(f'kernel_{i}', [x.shape[-1], size])
    bias = _V1.get_variable(f'bias_{i}', [size])
    x = tf.matmul(tf.nn.relu(x) if i else x, kernel) + bias
  losses = tf.nn.sigmoid_cross_entropy_with_logits(clicked, x)
  return tf.reduce_mean(losses)


def _train_op(
  sizes: workloads.Clicks, spec: tf.train.ClusterSpec, worker: int
) -> Any:
  """Makes the graph of a worker; returns the operation of a step."""
  device = _V1.train.replica_device_setter(
    cluster=spec, worker_device=f'/job:worker/task:{worker}'
  )
  with _V1.device(device):
    step = _V1.train.get_or_create_global_step()
    ids, clicked = _batch(sizes, worker)
    ps = [f'/job:ps/task:{i}/CPU:0' for i in range(spec.num_tasks('ps'))]
    loss = _loss(sizes, ids, clicked, ps)
    adagrad = _V1.train.AdagradOptimizer(sizes.rate)
    optimizer = de.DynamicEmbeddingOptimizer(adagrad)
    return optimizer.minimize(loss, global_step=step)


def main(name: str, folder: str) -> None:
  sizes = workloads.OF_TABLES[name]
  resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
  spec, index = resolver.cluster_spec(), resolver.task_id
  server = tf.distribute.Server(spec, resolver.task_type, index)
  if resolver.task_type == 'ps':
    server.join()
  _V1.disable_eager_execution()
  train_op = _train_op(sizes, spec, index)
  with _V1.train.MonitoredTrainingSession(
    server.target, is_chief=index == 0
  ) as session:
    for num_steps in orders.numbers_of_steps(folder, f'worker:{index}'):
      for _ in range(num_steps):
        session.run(train_op)


if __name__ == '__main__':
  main(*sys.argv[1:])
