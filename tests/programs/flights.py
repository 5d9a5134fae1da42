"""Learns which flights leave late, as every task of a job, on any engine.

What it prints is what tests of engines go by: `TASK ps:0 pid 123` at each
start, `BEGIN 0` and `AT 40` with the count of steps, and in the end `AUC`,
`STEP`, `COUNT` (a variable to which each step adds 1) and `REPEATED`.
"""

import os
import sys
import time

from absl import app
from absl import flags
from absl import logging
import numpy as np

import tfps

_DATA = flags.DEFINE_string('data', None, 'file with the flights')
_DIRECTORY = flags.DEFINE_string('directory', None, 'of snapshots')
_STEPS = flags.DEFINE_integer('steps', 400, 'until this global step')
_PAUSE_SECS = flags.DEFINE_float('pause_secs', 0.0, 'after each execution')
_FAILS = flags.DEFINE_string('fails', '', 'task that exits with status 7')
_SHOWS = flags.DEFINE_string('shows', '', 'variable of the environment')

_STEPS_PER_EXECUTION = 10
_BATCH_SIZE = 256

tfps.define_flags()


def main(_: list[str]) -> int | None:
  logging.set_verbosity(logging.WARNING)
  cluster = tfps.resolve_cluster()
  print(f'TASK {cluster.task} pid {os.getpid()}', flush=True)
  if _SHOWS.value:
    print(f'{_SHOWS.value}={os.environ.get(_SHOWS.value)}', flush=True)
  if str(cluster.task) == _FAILS.value:
    return 7
  if cluster.task.job in ('ps', 'worker'):
    return tfps.serve(cluster)
  return train(cluster)


def train(cluster: tfps.Cluster) -> None:
  import tensorflow as tf

  data = np.load(_DATA.value)
  ids, numbers, late = data['ids'], data['numbers'], data['late']
  recovery = tfps.Recovery(_DIRECTORY.value, every_secs=1)
  strategy = tfps.ParameterServerStrategy(cluster, recovery=recovery)
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False, name='count')
    table = tf.Variable(tf.zeros([int(ids.max()) + 1, 1]), name='table')
    weights = tf.Variable(tf.zeros([numbers.shape[1], 1]), name='weights')

  def logits(ids: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    rows = tf.nn.embedding_lookup(table, ids)
    return tf.reduce_sum(rows, axis=1) + numbers @ weights

  def step(batch: tuple[tf.Tensor, ...]) -> None:
    ids, numbers, late = batch
    variables = [table, weights]
    with tf.GradientTape() as tape:
      losses = tf.nn.sigmoid_cross_entropy_with_logits(
        late, logits(ids, numbers)
      )
      loss = tf.reduce_mean(losses)
    for variable, gradient in zip(
      variables, tape.gradient(loss, variables), strict=True
    ):
      variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))
    count.assign_add(1)

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    share = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    examples = (ids[share], numbers[share], late[share])
    flights = tf.data.Dataset.from_tensor_slices(examples)
    return flights.shuffle(10_000, seed=1).repeat().batch(_BATCH_SIZE)

  def say(progress: object) -> None:
    print(f'AT {progress.step}', flush=True)
    time.sleep(_PAUSE_SECS.value)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    print(f'BEGIN {int(count.numpy())}', flush=True)
    result = coordinator.train(
      step,
      dataset,
      steps=_STEPS.value,
      steps_per_execution=_STEPS_PER_EXECUTION,
      hooks=[say],
    )
    scores = logits(data['held_out_ids'], data['held_out_numbers']).numpy()
    print(f'AUC {auc(data["held_out_late"], scores):.3f}')
    print(f'STEP {result.step}')
    print(f'COUNT {int(count.numpy())}')
    print(f'REPEATED {strategy.recovery_report().steps_repeated}', flush=True)


def auc(late: np.ndarray, scores: np.ndarray) -> float:
  """Returns how often a late flight has a higher score than another."""
  order = np.argsort(scores[:, 0])
  is_late = late[order, 0] > 0
  ranks = np.arange(1, len(order) + 1)
  num_late = is_late.sum()
  above = ranks[is_late].sum() - num_late * (num_late + 1) / 2
  return float(above / (num_late * (len(order) - num_late)))


if __name__ == '__main__':
  sys.exit(app.run(main))
