"""A perceptron of any depth and width, on made-up numbers.

Kernels are made before biases, so that a strategy that places variables in turn
gives each ps as many bytes as one that looks at their sizes: what differs is
the wire.
"""

import dataclasses

import tensorflow as tf

RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Perceptron:
  """What to train.

  Attributes:
    num_layers: each with a kernel and a bias.
    width: of each layer.
    batch: examples of a step.
  """

  num_layers: int
  width: int
  batch: int

  @property
  def num_variables(self) -> int:
    return 1 + 2 * self.num_layers

  @property
  def num_bytes(self) -> int:
    """Of all parameters."""
    return 4 * (self.num_layers * (self.width + 1) * self.width + 1)

  def variables(self) -> list[tf.Variable]:
    """A weight, then the kernels, then the biases."""
    kernels = [
      tf.Variable(tf.eye(self.width) * (1 + 0.01 * i), name=f'kernel_{i}')
      for i in range(self.num_layers)
    ]
    biases = [
      tf.Variable(tf.zeros([self.width]), name=f'bias_{i}')
      for i in range(self.num_layers)
    ]
    return [tf.Variable(1.0, name='weight'), *kernels, *biases]

  def loss(self, variables: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    weight, *layers = variables
    kernels, biases = layers[: self.num_layers], layers[self.num_layers :]
    for kernel, bias in zip(kernels, biases, strict=True):
      x = tf.tanh(x @ kernel + bias)
    return tf.reduce_mean(tf.square(x)) * weight

  def gradients(
    self, variables: list[tf.Variable], x: tf.Tensor
  ) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      loss = self.loss(variables, x)
    return tape.gradient(loss, variables)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One batch without end."""
    seed = [context.input_pipeline_id, 0]
    x = tf.random.stateless_normal([self.batch, self.width], seed)
    return tf.data.Dataset.from_tensors(x).repeat()


# 41 variables, 0.33 MB: many and small.
SMALL = Perceptron(num_layers=20, width=64, batch=32)
# 13 variables, 9.4 MB, with little to compute.
LARGE = Perceptron(num_layers=6, width=625, batch=8)
# As large as a trial needs.
TINY = Perceptron(num_layers=2, width=16, batch=8)
