"""A hundred workers and ten ps in one process, which make each update together.

In its i-th step a worker has a gradient that is only in the i-th place, so that
in the end each place of each variable tells the mean of one step. Prints a line
of JSON.

Usage: crowd_task.py NUM_WORKERS NUM_PS NUM_STEPS
"""

import dataclasses
import json
import os
import sys
import time

import keras
import numpy as np
import psutil
import tensorflow as tf

import tfps
from tfps import testing
from tfps.training import hooks

STEPS_PER_EXECUTION = 1
_TIMEOUT_SECS = 300.0
# Nothing here can freeze on its own, and cpus that a thousand graphs keep busy
# answer no pings in time.
_NO_PINGS = 'grpc.keepalive_time_ms=3600000'


@dataclasses.dataclass(frozen=True)
class Found:
  """What came of it.

  Attributes:
    num_workers: how many there were.
    num_ps: likewise.
    num_steps: of each worker.
    num_right: the steps of which all variables got the mean of all workers.
    ms_per_step: after the first execution, which traces.
    gigabytes: of the process, with all servers, at most.
    threads: of the process.
  """

  num_workers: int
  num_ps: int
  num_steps: int
  num_right: int
  ms_per_step: float
  gigabytes: float
  threads: int


def main(num_workers: int, num_ps: int, num_steps: int) -> None:
  os.environ.setdefault('TF_GRPC_DEFAULT_OPTIONS', _NO_PINGS)
  with testing.InProcessCluster(num_workers, num_ps) as cluster:
    found = train(cluster.cluster, num_steps)
  print(json.dumps(dataclasses.asdict(found)), flush=True)


def train(cluster: tfps.Cluster, num_steps: int) -> Found:
  """Makes so many updates."""
  strategy = tfps.ParameterServerStrategy(cluster, updates=tfps.updates.Sync())
  with strategy.scope():
    variables = [
      tf.Variable(tf.zeros([num_steps], tf.float64), name=f'v{i}')
      for i in range(cluster.num_ps)
    ]
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(variables)

  def step(gradient: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      loss = tf.add_n([tf.reduce_sum(v * gradient) for v in variables])
    optimizer.apply(tape.gradient(loss, variables), variables)

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    own = float(context.input_pipeline_id)
    return (
      tf.data.Dataset.range(num_steps)
      .repeat()
      .map(
        lambda i: tf.one_hot(i, num_steps, on_value=own + 1, dtype=tf.float64)
      )
    )

  seen: list[tuple[int, float]] = []

  def note(progress: hooks.Progress) -> None:
    if progress.moment == 'step':
      seen.append((progress.step, time.perf_counter()))

  with tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS) as coordinator:
    coordinator.train(
      step,
      dataset,
      steps=num_steps,
      steps_per_execution=STEPS_PER_EXECUTION,
      hooks=[note],
    )
  (first, begin), (last, end) = seen[0], seen[-1]
  mean = (cluster.num_workers + 1) / 2
  is_right = [np.isclose(v.numpy(), -mean) for v in variables]
  process = psutil.Process()
  return Found(
    num_workers=cluster.num_workers,
    num_ps=cluster.num_ps,
    num_steps=last,
    num_right=int(np.all(is_right, axis=0).sum()),
    ms_per_step=(end - begin) * 1e3 / max(1, last - first),
    gigabytes=process.memory_info().rss / 1e9,
    threads=process.num_threads(),
  )


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
