"""The models of `workloads`, written with TensorFlow's variables and functions.

All sides that run TensorFlow train the same; only optimizers are of the Keras
that works under their strategy.
"""

import itertools
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import workloads
import tfps

_KEYS_AT_ONCE = 10_000
_NUM_OF_LAYERS = 4  # variables: a kernel and a bias of each

Batch = tuple[tf.Tensor, tf.Tensor]


class Network:
  """A model, its data and its optimizer.

  Attributes:
    partitioner: divides its variables into shards; None for none.
  """

  partitioner: Any = None

  def variables(self) -> list[tf.Variable]:
    raise NotImplementedError

  def loss(self, variables: list[tf.Variable], batch: Batch) -> tf.Tensor:
    raise NotImplementedError

  def optimizer(self, keras: Any) -> Any:
    """The optimizer, of `keras` or `tf_keras`."""
    raise NotImplementedError

  def batches(self, worker: int) -> list[workloads.Batch]:
    raise NotImplementedError

  def gradients(
    self, variables: list[tf.Variable], batch: Batch
  ) -> list[tf.Tensor | tf.IndexedSlices]:
    with tf.GradientTape() as tape:
      loss = self.loss(variables, batch)
    return tape.gradient(loss, variables)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One worker's batches, again and again."""
    batches = self.batches(context.input_pipeline_id)
    columns = tuple(map(np.stack, zip(*batches, strict=True)))
    return tf.data.Dataset.from_tensor_slices(columns).repeat().prefetch(2)


class Mlp(Network):
  """That of `workloads.Mlp`.

  Args:
    sizes: what it is like.
  """

  def __init__(self, sizes: workloads.Mlp = workloads.MLP) -> None:
    self._sizes = sizes
    self.batches = sizes.batches

  def variables(self) -> list[tf.Variable]:
    return _layers(self._sizes.sizes)

  def loss(self, variables: list[tf.Variable], batch: Batch) -> tf.Tensor:
    x, y = batch
    return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(y, _apply(variables, x))
    )

  def optimizer(self, keras: Any) -> Any:
    return keras.optimizers.Adam(self._sizes.rate)


class Clicks(Network):
  """That of `workloads.Clicks`, with one table or several.

  Args:
    sizes: what it is like.
  """

  def __init__(self, sizes: workloads.Clicks = workloads.CLICKS) -> None:
    self._sizes = sizes
    self.batches = sizes.batches

  def variables(self) -> list[tf.Variable]:
    layers = self._sizes.num_tables * self._sizes.width, self._sizes.hidden, 1
    return [*self._tables(), *_layers(layers)]

  def loss(self, variables: list[tf.Variable], batch: Batch) -> tf.Tensor:
    ids, clicked = batch
    columns = [ids] if ids.shape.rank == 1 else tf.unstack(ids, axis=1)
    rows = self._look_up(variables[:-_NUM_OF_LAYERS], columns)
    logits = _apply(variables[-_NUM_OF_LAYERS:], tf.concat(rows, axis=-1))
    return tf.reduce_mean(
      tf.nn.sigmoid_cross_entropy_with_logits(clicked, logits)
    )

  def _tables(self) -> list[tf.Variable]:
    shape = [self._sizes.num_rows, self._sizes.width]
    return [
      tf.Variable(
        tf.random.stateless_uniform(shape, [1, 1 + i], -0.05, 0.05),
        name=f'table_{i}',
      )
      for i in range(self._sizes.num_tables)
    ]

  def _look_up(
    self, variables: list[tf.Variable], columns: list[tf.Tensor]
  ) -> list[tf.Tensor]:
    """The rows of ids, of which each column has its table."""
    return [
      tf.nn.embedding_lookup(table, ids)
      for table, ids in zip(variables, columns, strict=True)
    ]

  def optimizer(self, keras: Any) -> Any:
    return keras.optimizers.Adagrad(self._sizes.rate)


class Sharded(Clicks):
  """The same, with the table in two shards."""

  partitioner = tfps.partitioners.MinSize(1 << 20, max_shards=2)


class Keyed(Clicks):
  """The same by ids of any value, in a table that grows.

  All ids of the batches have a row before the first step.
  """

  eviction: Any = None
  storage: Any = None
  num_shards: int | None = None

  def _tables(self) -> list[tf.Variable]:
    sizes = self._sizes
    self._keyed = [
      tfps.embeddings.Table(
        sizes.width,
        eviction=self.eviction,
        storage=self.storage,
        num_shards=self.num_shards,
        name=f'keyed_{i}',
      )
      for i in range(sizes.num_tables)
    ]
    for table in self._keyed:
      table.build()
      for first in range(0, sizes.num_rows, _KEYS_AT_ONCE):
        table.lookup(tf.range(first, first + _KEYS_AT_ONCE), training=True)
    return [v for table in self._keyed for v in table.trainable_variables]

  def _look_up(
    self, variables: list[tf.Variable], columns: list[tf.Tensor]
  ) -> list[tf.Tensor]:
    del variables
    return [
      table.lookup(ids) for table, ids in zip(self._keyed, columns, strict=True)
    ]


class Unsharded(Keyed):
  """The same, with all of a table on one ps, as `Clicks` has it."""

  num_shards = 1


class OneTable(Clicks):
  """The same by ids of any value, with all features in one table."""

  def _tables(self) -> list[tf.Variable]:
    sizes = self._sizes
    self._embedding = tfps.embeddings.Embedding(
      sizes.width, num_features=sizes.num_tables
    )
    self._embedding.build()
    for first in range(0, sizes.num_rows, _KEYS_AT_ONCE):
      ids = tf.range(first, first + _KEYS_AT_ONCE)[:, tf.newaxis]
      self._embedding(tf.repeat(ids, sizes.num_tables, axis=1), training=True)
    return list(self._embedding.trainable_variables)

  def _look_up(
    self, variables: list[tf.Variable], columns: list[tf.Tensor]
  ) -> list[tf.Tensor]:
    del variables
    return tf.unstack(self._embedding(tf.stack(columns, axis=1)), axis=1)


class Evicting(Keyed):
  """The same, in a table that would evict those used longest ago."""

  eviction = tfps.embeddings.Lru(1 << 40)


class Drawn(Keyed):
  """The same as `Keyed`, with ids that are drawn anew for each batch."""

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    sizes = self._sizes

    def with_drawn_ids(step: tf.Tensor, clicked: tf.Tensor) -> Batch:
      seed = tf.stack([tf.constant(context.input_pipeline_id, tf.int64), step])
      uniform = tf.random.stateless_uniform(
        [sizes.batch], seed, 1e-9, 1.0, tf.float64
      )
      # The number from which on Zipf's law has that share of all draws.
      ranks = tf.cast(uniform ** (1.0 / (1.0 - sizes.exponent)), tf.int64)
      return ranks % sizes.num_rows, clicked

    return _numbered_clicks(super().dataset(context)).map(with_drawn_ids)


class Stored(Drawn):
  """The same, with a quarter of all rows and slots in memory."""

  def __init__(self) -> None:
    super().__init__()
    sizes = self._sizes
    num_bytes = sizes.num_rows * sizes.width * 4 * 2  # Adagrad has one slot
    self.storage = tfps.embeddings.Storage(
      memory_bytes=num_bytes // 4, directory=tempfile.gettempdir()
    )


class New(Keyed):
  """The same as `Keyed`, of which no id has been seen before."""

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    def with_new_ids(step: tf.Tensor, clicked: tf.Tensor) -> Batch:
      seed = tf.stack([tf.constant(context.input_pipeline_id, tf.int64), step])
      shape, limit = [self._sizes.batch], tf.int64.max
      ids = tf.random.stateless_uniform(shape, seed, 0, limit, tf.int64)
      return ids, clicked

    return _numbered_clicks(super().dataset(context)).map(with_new_ids)


def _numbered_clicks(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """The clicks of batches, without ids, each with the number of the batch."""
  clicks = dataset.map(lambda ids, clicked: clicked)
  return tf.data.Dataset.zip(tf.data.Dataset.counter(), clicks)


def _layers(sizes: tuple[int, ...]) -> list[tf.Variable]:
  """All kernels, then all biases; see `perceptron`."""
  kernels, biases = [], []
  for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
    limit = (6 / (rows + columns)) ** 0.5
    kernel = tf.random.stateless_uniform([rows, columns], [i, 2], -limit, limit)
    kernels.append(tf.Variable(kernel, name=f'kernel_{i}'))
    biases.append(tf.Variable(tf.zeros([columns]), name=f'bias_{i}'))
  return [*kernels, *biases]


def _apply(variables: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
  """The last layer's output, with a ReLU between layers."""
  half = len(variables) // 2
  pairs = zip(variables[:half], variables[half:], strict=True)
  for i, (kernel, bias) in enumerate(pairs):
    x = (tf.nn.relu(x) if i else x) @ kernel + bias
  return x
