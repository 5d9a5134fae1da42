"""One training of a DLRM from its start, with workers and ps as processes.

It prints the seconds until the first execution was done and until all steps
were, the CPU seconds of all tasks, and the peak megabytes of a worker.

Usage: dlrm_task.py HOW STEPS_PER_EXECUTION NUM_STEPS
"""

from collections.abc import Callable
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import models
from benchmarks import usage
import tfps
from tfps import testing

_MAX_ROWS = 100_000  # of a table, as its size changes nothing but memory
_NUM_TABLES, _NUM_NUMBERS, _WIDTH = 26, 13, 16
_ROWS = [min(rows, _MAX_ROWS) for rows, _ in models.dlrm()[:_NUM_TABLES]]
_BATCH, _NUM_BATCHES = 512, 20

Fit = Callable[[int], object]


def _build(keras: Any, steps_per_execution: int) -> Any:
  """Returns a model with the tables of `models.dlrm`, compiled."""
  ids = keras.layers.Input((_NUM_TABLES,), dtype='int32')
  numbers = keras.layers.Input((_NUM_NUMBERS,))
  vectors = [
    keras.layers.Embedding(rows, _WIDTH)(ids[:, i])
    for i, rows in enumerate(_ROWS)
  ]
  dense = numbers
  for size in (512, 256, 64, _WIDTH):
    dense = keras.layers.Dense(size, 'relu')(dense)
  stacked = keras.layers.Reshape((-1, _WIDTH))(
    keras.layers.Concatenate()([dense, *vectors])
  )
  products = keras.layers.Dot((2, 2))([stacked, stacked])
  hidden = keras.layers.Concatenate()([dense, keras.layers.Flatten()(products)])
  for size in (512, 256):
    hidden = keras.layers.Dense(size, 'relu')(hidden)
  output = keras.layers.Dense(1, 'sigmoid')(hidden)
  model = keras.Model([ids, numbers], output)
  model.compile(
    'adagrad',
    'binary_crossentropy',
    metrics=['AUC'],
    steps_per_execution=steps_per_execution,
  )
  return model


def _dataset(context: Any) -> tf.data.Dataset:
  """Returns batches, as often as wanted, that differ from worker to worker."""
  random = np.random.default_rng(context.input_pipeline_id)
  size = _NUM_BATCHES, _BATCH
  ids = np.stack([random.integers(n, size=size) for n in _ROWS], axis=2)
  numbers = random.random((*size, _NUM_NUMBERS), 'f')
  labels = random.integers(2, size=(*size, 1)).astype('f')
  return tf.data.Dataset.from_tensor_slices(
    ((ids.astype('int32'), numbers), labels)
  ).repeat()


def _ours(cluster: tfps.Cluster, steps_per_execution: int) -> Fit:
  import keras

  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    model = _build(keras, steps_per_execution)
  return lambda steps: model.fit(_dataset, steps_per_epoch=steps, verbose=0)


def _stock(cluster: tfps.Cluster, steps_per_execution: int) -> Fit:
  import tf_keras

  strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
  with strategy.scope():
    model = _build(tf_keras, steps_per_execution)
  data = tf_keras.utils.experimental.DatasetCreator(_dataset)
  return lambda steps: model.fit(data, steps_per_epoch=steps, verbose=0)


SIDES = {'ours': _ours, 'stock': _stock}


def main(how: str, steps_per_execution: str, num_steps: str) -> None:
  number = int(steps_per_execution)
  with testing.ProcessCluster(num_workers=2, num_ps=2) as cluster:
    tasks = [t for t in cluster.cluster.tasks() if t.job != 'chief']
    pids = [cluster.pid(task.job, task.index) for task in tasks]
    fit = SIDES[how](cluster.cluster, number)

    def cpu_secs() -> float:
      return time.process_time() + sum(map(usage.cpu_secs, pids))

    began, cpu = time.perf_counter(), cpu_secs()
    fit(number)
    first = time.perf_counter() - began
    fit(int(num_steps) - number)
    secs, cpu = time.perf_counter() - began, cpu_secs() - cpu
    peak = usage.peak_megabytes(cluster.pid('worker', 0))
    print(first, secs, cpu, peak, flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
