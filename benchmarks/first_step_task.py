"""One training from its start: what the first steps cost.

All tasks of a cluster are in this process, so that its CPU time is that of all
of them. It prints the seconds until the first execution was done, and the
seconds and CPU seconds until the first epoch was.

Usage: first_step_task.py HOW MODEL STEPS_PER_EXECUTION
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tfps
from tfps import testing

# Of models with embeddings.
KEYED = 'ours, keyed by any id'
ONE_TABLE = 'ours, keyed by any id, in one table'

NUM_STEPS = 80
_NUM_ROWS, _BATCH = 1000, 64

Fit = Callable[[Any, int], object]


@dataclasses.dataclass(frozen=True)
class Model:
  """A model to train.

  Attributes:
    name: for files.
    num_tables: how many embeddings it has; none makes a perceptron.
  """

  name: str
  num_tables: int


MODELS = {
  'MLP': Model('mlp', 0),
  '1 embedding': Model('embedding', 1),
  '26 embeddings': Model('embeddings', 26),
}


def _mlp(keras: Any) -> Any:
  sizes = [(256, 'relu'), (128, 'relu'), (10, 'softmax')]
  layers = [keras.layers.Dense(*size) for size in sizes]
  return keras.Sequential([keras.layers.Input((784,)), *layers])


def _tables(keras: Any, number: int, how: str) -> Any:
  ids = keras.layers.Input((number,), dtype='int32')
  numbers = keras.layers.Input((13,))
  if how == ONE_TABLE:
    vectors = tfps.embeddings.Embedding(16, num_features=number)(ids)
    rows = [keras.layers.Flatten()(vectors)]
  else:
    embeddings = [
      tfps.embeddings.Embedding(16)
      if how == KEYED
      else keras.layers.Embedding(_NUM_ROWS, 16)
      for _ in range(number)
    ]
    rows = [embedding(ids[:, i]) for i, embedding in enumerate(embeddings)]
  hidden = keras.layers.Concatenate()([*rows, numbers])
  for size in (128, 64):
    hidden = keras.layers.Dense(size, 'relu')(hidden)
  return keras.Model([ids, numbers], keras.layers.Dense(1, 'sigmoid')(hidden))


def _examples(name: str) -> Any:
  random, number = np.random.default_rng(1), MODELS[name].num_tables
  if not number:
    return random.random((_BATCH, 784), 'f'), random.integers(10, size=_BATCH)
  ids = random.integers(_NUM_ROWS, size=(_BATCH, number)).astype('int32')
  labels = random.integers(2, size=(_BATCH, 1)).astype('f')
  return (ids, random.random((_BATCH, 13), 'f')), labels


def _compiled(
  keras: Any, name: str, steps_per_execution: int, *, how: str = ''
) -> Any:
  number = MODELS[name].num_tables
  model = _tables(keras, number, how) if number else _mlp(keras)
  model.compile(
    'adagrad' if number else 'adam',
    'binary_crossentropy' if number else 'sparse_categorical_crossentropy',
    metrics=['AUC' if number else 'accuracy'],
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
def _ours(
  name: str,
  number: int,
  make: Any = tfps.ParameterServerStrategy,
  *,
  how: str = '',
) -> Iterator[Fit]:
  import keras

  with testing.InProcessCluster(num_workers=2, num_ps=2) as cluster:
    strategy = make(cluster.cluster)
    with strategy.scope():
      model = _compiled(keras, name, number, how=how)
    yield lambda dataset_fn, steps: model.fit(
      dataset_fn, steps_per_epoch=steps, verbose=0
    )


_keyed = functools.partial(_ours, how=KEYED)
_one_table = functools.partial(_ours, how=ONE_TABLE)
_between_graphs = functools.partial(_ours, make=tfps.BetweenGraphStrategy)
_sync = functools.partial(
  _ours,
  make=functools.partial(
    tfps.ParameterServerStrategy, updates=tfps.updates.Sync()
  ),
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


SIDES = {
  'single process': _single,
  'stock': _stock,
  'ours': _ours,
  KEYED: _keyed,
  ONE_TABLE: _one_table,
  'ours, between graphs': _between_graphs,
  'ours, Sync': _sync,
}


def main(how: str, name: str, steps_per_execution: str) -> None:
  number = int(steps_per_execution)
  examples = _examples(name)

  def dataset_fn(context: Any) -> tf.data.Dataset:
    del context
    return tf.data.Dataset.from_tensors(examples).repeat()

  with SIDES[how](name, number) as fit:
    began, cpu = time.perf_counter(), time.process_time()
    fit(dataset_fn, number)
    first = time.perf_counter() - began
    fit(dataset_fn, NUM_STEPS - number)
    epoch = time.perf_counter() - began
    print(first, epoch, time.process_time() - cpu, flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
