"""The chief of the benchmark of `fit`: trains an epoch when it is told to.

One long `fit` waits before each epoch, so that epochs are those of a training
that has been going on: nothing is traced or connected in them. Both sides have
the same model, batches, steps per execution and function of an InputContext.

Usage: keras_fit_task.py HOW MODEL WHERE FOLDER
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import orders
import tfps
from tfps import testing

NUM_WORKERS = NUM_PS = 2
NUM_ROWS = 1_000_000
_NUM_BATCHES = 50
_FOREVER = 1_000_000

Data = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
  """What to train, and how.

  Attributes:
    layers: makes them, given `keras.layers` or that of `tf_keras`.
    examples: makes some, given a number.
    loss: by its name.
    optimizer: by its name.
    batch_size: examples of a step.
    steps_per_execution: steps that a worker does at a time.
    num_shards: into which each variable is cut.
    unroll: as for `tfps.Wire`, of ours; None for what training begins with.
    takes_dataset: whether `fit` gets a dataset, from which ours takes batches
      in the chief, instead of a function of an InputContext.
  """

  layers: Callable[[Any], list[Any]]
  examples: Callable[[int], Data]
  loss: str
  optimizer: str
  batch_size: int
  steps_per_execution: int = 20
  num_shards: int | None = None
  unroll: int | None = None
  takes_dataset: bool = False

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One worker's endless batches."""
    del context
    examples = self.examples(_NUM_BATCHES * self.batch_size)
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    # Kept, as making them is the same work on both sides.
    return dataset.batch(self.batch_size).cache().repeat().prefetch(2)

  def compiled(self, keras: Any) -> Any:
    """The model; to be called in a strategy's scope."""
    model = keras.Sequential(self.layers(keras.layers))
    model.compile(
      self.optimizer,
      self.loss,
      metrics=['accuracy'],
      steps_per_execution=self.steps_per_execution,
    )
    return model


def _mlp_layers(layers: Any) -> list[Any]:
  return [
    layers.Input((64,)),
    layers.Dense(128, 'relu'),
    layers.Dense(128, 'relu'),
    layers.Dense(10, 'softmax'),
  ]


def _mlp_examples(number: int) -> Data:
  random = np.random.default_rng(1)
  return random.random((number, 64), 'f'), random.integers(10, size=number)


def _embedding_layers(layers: Any) -> list[Any]:
  return [
    layers.Input((1,), dtype='int32'),
    layers.Embedding(NUM_ROWS, 32),
    layers.Flatten(),
    layers.Dense(16, 'relu'),
    layers.Dense(1, 'sigmoid'),
  ]


def _embedding_examples(number: int) -> Data:
  random = np.random.default_rng(1)
  ids = random.zipf(1.2, (number, 1)) % NUM_ROWS
  return ids.astype('int32'), random.integers(2, size=(number, 1)).astype('f')


_MLP = Model(
  _mlp_layers, _mlp_examples, 'sparse_categorical_crossentropy', 'adam', 64
)
_EMBEDDING = Model(
  _embedding_layers, _embedding_examples, 'binary_crossentropy', 'adagrad', 512
)
MODELS = {
  'MLP': _MLP,
  'MLP, unrolled': dataclasses.replace(_MLP, unroll=20),
  'MLP, a dataset': dataclasses.replace(_MLP, takes_dataset=True),
  'MLP, short executions': dataclasses.replace(_MLP, steps_per_execution=2),
  'embedding': _EMBEDDING,
  'embedding, unrolled': dataclasses.replace(_EMBEDDING, unroll=20),
  'embedding in 2 shards': dataclasses.replace(_EMBEDDING, num_shards=2),
  'embedding, short executions': dataclasses.replace(
    _EMBEDDING, steps_per_execution=2
  ),
}


def main(how: str, name: str, where: str, folder: str) -> None:
  model = MODELS[name]
  with _cluster(where) as cluster:
    _FITS[how](model, cluster, orders.take(folder, 'chief:0'))


@contextlib.contextmanager
def _cluster(where: str) -> Iterator[tfps.Cluster]:
  if where == 'processes':
    yield tfps.resolve_cluster()
    return
  with testing.InProcessCluster(NUM_WORKERS, NUM_PS) as cluster:
    yield cluster.cluster


def _fit_by_ours(
  model: Model, cluster: tfps.Cluster, orders: Iterator[str]
) -> None:
  import keras

  shards = model.num_shards
  strategy = tfps.ParameterServerStrategy(
    cluster,
    tfps.partitioners.FixedShards(shards) if shards else None,
    wire=tfps.Wire(unroll=model.unroll),
  )
  with strategy.scope():
    compiled = model.compiled(keras)
  dataset: Any = model.dataset
  if model.takes_dataset:
    dataset = model.dataset(tf.distribute.InputContext())
  _fit(keras, compiled, dataset, orders)


def _fit_without_lookups(
  model: Model, cluster: tfps.Cluster, orders: Iterator[str]
) -> None:
  """With embeddings as Keras has them, whose tables travel to the worker."""
  from tfps._compat import keras as keras_compat

  keras_compat.look_up_on_ps = lambda: None
  _fit_by_ours(model, cluster, orders)


def _fit_by_stock(
  model: Model, cluster: tfps.Cluster, orders: Iterator[str]
) -> None:
  import tf_keras

  shards = model.num_shards
  partitioners = tf.distribute.experimental.partitioners
  strategy = tf.distribute.ParameterServerStrategy(
    cluster.resolver(),
    partitioners.FixedShardsPartitioner(shards) if shards else None,
  )
  with strategy.scope():
    compiled = model.compiled(tf_keras)
  dataset = tf_keras.utils.experimental.DatasetCreator(model.dataset)
  if model.takes_dataset:
    dataset = model.dataset(tf.distribute.InputContext())
  _fit(tf_keras, compiled, dataset, orders)


def _fit(keras: Any, model: Any, dataset: Any, orders: Iterator[str]) -> None:
  """Trains an epoch for each order; epochs are of one length."""
  order = next(orders)

  def wait(epoch: int, logs: Any) -> None:
    if next(orders, None) != order:
      model.stop_training = True

  model.fit(
    dataset,
    epochs=_FOREVER,
    steps_per_epoch=int(order.split()[-1]),
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=wait)],
    verbose=0,
  )


_FITS = {
  'ours': _fit_by_ours,
  'no lookups': _fit_without_lookups,
  'stock': _fit_by_stock,
}


if __name__ == '__main__':
  main(*sys.argv[1:])
