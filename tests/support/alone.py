"""A model, and how one process trains it, which strategies are to equal."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras
from keras import layers
import numpy as np
import tensorflow as tf

OPTIMIZERS = {
  'SGD': lambda: keras.optimizers.SGD(0.05),
  'momentum': lambda: keras.optimizers.SGD(0.05, 0.9),
  'Adam': lambda: keras.optimizers.Adam(0.05),
  'clipped Adam': lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1),
  'scaled SGD': lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.05)
  ),
}


def make_model(
  optimizer: Any,
  head: Callable[[], Sequence[Any]] = lambda: [layers.Dense(1, 'tanh')],
  *,
  embedding: Callable[[], Any] = lambda: layers.Embedding(12, 4),
  dtype: str = 'int32',
  **compile_args: Any,
) -> keras.Model:
  """A model of rows of three numbers below 12, which begins the same always.

  Args:
    optimizer: its own.
    head: makes the layers after the embedding.
    embedding: makes the layer of the embedding.
    dtype: type of the rows.
    **compile_args: for `compile`, besides the loss.
  """
  keras.utils.set_random_seed(3)
  model = keras.Sequential(
    [
      layers.Input((3,), dtype=dtype),
      embedding(),
      layers.Flatten(),
      *head(),
    ]
  )
  model.compile(optimizer, 'mse', **compile_args)
  return model


def train(
  model: keras.Model, x: np.ndarray, y: np.ndarray, sizes: Iterable[int]
) -> keras.Model:
  """As `fit` does, with whole gradients of embeddings, as the formulas have."""

  @tf.function(reduce_retracing=True)
  def step(x: tf.Tensor, y: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
      loss = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(loss, model.trainable_weights)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    model.optimizer.apply(gradients, model.trainable_weights)

  model.optimizer.build(model.trainable_weights)
  first = 0
  for size in sizes:
    rows = slice(first, first + size)
    step(tf.constant(x[rows]), tf.constant(y[rows]))
    first += size
  return model


def assert_same_weights(model: keras.Model, other: keras.Model) -> None:
  """To rounding; counters and seeds may differ."""
  for weight, wanted in zip(model.weights, other.weights, strict=True):
    if weight.dtype.startswith('float'):
      np.testing.assert_allclose(
        weight.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5
      )
