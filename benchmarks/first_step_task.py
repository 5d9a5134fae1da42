"""One training from its start: what the first steps cost.

All tasks of a cluster are in this process, so that its CPU time is that of all
of them. It prints the seconds until the first execution was done, and the
seconds and CPU seconds until the first epoch was.

Usage: first_step_task.py HOW MODEL STEPS_PER_EXECUTION
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tfps
from tfps import testing

NUM_STEPS = 80
_NUM_TABLES, _NUM_ROWS, _BATCH = 26, 1000, 64

Fit = Callable[[Any, int], object]


def _mlp(keras: Any) -> Any:
  sizes = [(256, 'relu'), (128, 'relu'), (10, 'softmax')]
  layers = [keras.layers.Dense(*size) for size in sizes]
  return keras.Sequential([keras.layers.Input((784,)), *layers])


def _tables(keras: Any) -> Any:
  ids = keras.layers.Input((_NUM_TABLES,), dtype='int32')
  numbers = keras.layers.Input((13,))
  rows = [
    keras.layers.Embedding(_NUM_ROWS, 16)(ids[:, i]) for i in range(_NUM_TABLES)
  ]
  hidden = keras.layers.Concatenate()([*rows, numbers])
  for size in (128, 64):
    hidden = keras.layers.Dense(size, 'relu')(hidden)
  return keras.Model([ids, numbers], keras.layers.Dense(1, 'sigmoid')(hidden))


def _examples(name: str) -> Any:
  random = np.random.default_rng(1)
  if name == 'MLP':
    return random.random((_BATCH, 784), 'f'), random.integers(10, size=_BATCH)
  ids = random.integers(_NUM_ROWS, size=(_BATCH, _NUM_TABLES)).astype('int32')
  labels = random.integers(2, size=(_BATCH, 1)).astype('f')
  return (ids, random.random((_BATCH, 13), 'f')), labels


def _compiled(keras: Any, name: str, steps_per_execution: int) -> Any:
  is_mlp = name == 'MLP'
  model = (_mlp if is_mlp else _tables)(keras)
  model.compile(
    'adam' if is_mlp else 'adagrad',
    'sparse_categorical_crossentropy' if is_mlp else 'binary_crossentropy',
    metrics=['accuracy' if is_mlp else 'AUC'],
    steps_per_execution=steps_per_execution,
  )
  return model


@contextlib.contextmanager
def _single(name: str, number: int) -> Iterator[Fit]:
  import keras

  model = _compiled(keras, name, number)
  yield lambda dataset_fn, steps: model.fit(
    dataset_fn(None), steps_per_epoch=steps, verbose=0
  )


@contextlib.contextmanager
def _ours(name: str, number: int) -> Iterator[Fit]:
  import keras

  with testing.InProcessCluster(num_workers=2, num_ps=2) as cluster:
    strategy = tfps.ParameterServerStrategy(cluster.cluster)
    with strategy.scope():
      model = _compiled(keras, name, number)
    yield lambda dataset_fn, steps: model.fit(
      dataset_fn, steps_per_epoch=steps, verbose=0
    )


@contextlib.contextmanager
def _stock(name: str, number: int) -> Iterator[Fit]:
  import tf_keras

  with testing.InProcessCluster(num_workers=2, num_ps=2) as cluster:
    strategy = tf.distribute.ParameterServerStrategy(cluster.cluster.resolver())
    with strategy.scope():
      model = _compiled(tf_keras, name, number)
    creator = tf_keras.utils.experimental.DatasetCreator
    yield lambda dataset_fn, steps: model.fit(
      creator(dataset_fn), steps_per_epoch=steps, verbose=0
    )


_SIDES = {'single process': _single, 'ours': _ours, 'stock': _stock}


def main(how: str, name: str, steps_per_execution: str) -> None:
  number = int(steps_per_execution)
  examples = _examples(name)

  def dataset_fn(context: Any) -> tf.data.Dataset:
    del context
    return tf.data.Dataset.from_tensors(examples).repeat()

  with _SIDES[how](name, number) as fit:
    began, cpu = time.perf_counter(), time.process_time()
    fit(dataset_fn, number)
    first = time.perf_counter() - began
    fit(dataset_fn, NUM_STEPS - number)
    epoch = time.perf_counter() - began
    print(first, epoch, time.process_time() - cpu, flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
