"""A large table of embeddings, of which a step uses few rows."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Lookup:
  """What to train.

  Attributes:
    num_rows: of the table.
    width: of a row.
    batch: rows that a step looks up.
  """

  num_rows: int
  width: int
  batch: int

  num_variables = 2

  @property
  def num_bytes(self) -> int:
    """Of all parameters."""
    return 4 * (self.num_rows + 1) * self.width

  def variables(self) -> list[tf.Variable]:
    """The table, and a weight for each of its columns."""
    return [
      tf.Variable(tf.ones([self.num_rows, self.width]), name='table'),
      tf.Variable(tf.ones([self.width]), name='weights'),
    ]

  def loss(self, variables: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    table, weights = variables
    rows = tf.nn.embedding_lookup(table, x)
    return tf.reduce_mean(tf.tanh(tf.reduce_sum(rows * weights, axis=1)))

  def gradients(
    self, variables: list[tf.Variable], x: tf.Tensor
  ) -> list[tf.Tensor | tf.IndexedSlices]:
    with tf.GradientTape() as tape:
      loss = self.loss(variables, x)
    return tape.gradient(loss, variables)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One batch of row numbers, without end."""
    seed = [context.input_pipeline_id, 0]
    x = tf.random.stateless_uniform(
      [self.batch], seed, maxval=self.num_rows, dtype=tf.int64
    )
    return tf.data.Dataset.from_tensors(x).repeat()


# 51 MB.
TABLE = Lookup(num_rows=200_000, width=64, batch=2048)
