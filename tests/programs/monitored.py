"""Trains a table on a queue, whose metrics a test reads meanwhile.

The chief waits at each of GATES until a file of that name, `go-STEP`, is in the
directory, and at the end for `end`. It says the global step that it reached.

Usage: monitored.py DIRECTORY (coordinator | between)
"""

import contextlib
import os
import pathlib
import sys

import keras
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps.monitor import registry as registry_lib
from tfps.training import hooks

GATES = (40, 80)
STEPS = 120
BATCH = 4


def main(directory: pathlib.Path, how: str) -> None:
  cluster = tfps.resolve_cluster()
  assert cluster.task is not None
  job = cluster.task.job
  print('pid', os.getpid(), flush=True)
  if job == 'evaluator':
    with contextlib.suppress(tfps.CheckpointError):  # there are none
      tfps.evaluate_checkpoints(make_model, None, directory / 'checkpoints')
    return
  if job == 'ps' or (job == 'worker' and how == 'coordinator'):
    tfps.serve(cluster)
    return
  recovery = tfps.Recovery(directory / 'snapshots', every_secs=1.5)
  strategy = (
    tfps.ParameterServerStrategy(cluster, recovery=recovery)
    if how == 'coordinator'
    else tfps.BetweenGraphStrategy(cluster, recovery=recovery)
  )
  trainer = tfps.Coordinator(strategy) if how == 'coordinator' else strategy
  with strategy.scope():
    table = tfps.embeddings.Table(2, eviction=tfps.embeddings.Lru(50))
    table.build()
    queue = tfps.input.SplitQueue(
      tfps.input.Ranges(100_000, 1_000), epochs=None
    )
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(table.trainable_variables)

  def step(keys: tf.Tensor) -> dict[str, tf.Tensor]:
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(table.lookup(keys))
    variables = table.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return {'loss': loss}

  is_chief = how == 'coordinator' or strategy.is_chief

  def wait_at_gates(progress: hooks.Progress) -> None:
    if progress.step < GATES[0]:  # so that each worker does some before it
      waiting.until(are_workers_idle, timeout_secs=120)
    for gate in GATES if is_chief else ():
      if progress.step >= gate:
        wait_for(directory / f'go-{gate}')

  result = trainer.train(
    step,
    lambda context: queue.dataset(context).batch(BATCH, drop_remainder=True),
    steps=STEPS,
    steps_per_execution=5,
    hooks=[wait_at_gates],
  )
  print('trained', result.step, flush=True)
  wait_for(directory / 'end')


def make_model() -> keras.Model:
  raise AssertionError('there are no checkpoints to evaluate')


def are_workers_idle() -> bool:
  activities = registry_lib.of_process().activities()
  return not any(each.what == 'executes a function' for each in activities)


def wait_for(path: pathlib.Path) -> None:
  waiting.until(path.exists, timeout_secs=120)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), sys.argv[2])
