"""A small model with a table, and its data, for workers and one process."""

import os
import time

import keras
import numpy as np
import tensorflow as tf

SIZE, WIDTH, ROWS = 6, 4, 720
NUM_EXAMPLES = ROWS // WIDTH

OPTIMIZERS = {
  'sgd': lambda: keras.optimizers.SGD(0.1, momentum=0.9),
  'adam': lambda: keras.optimizers.Adam(0.01),
  'adamw': lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
}

CHOICES = {
  'rule': None,
  'all with the workers': lambda description: 'workers',
  'all on the ps': lambda description: 'ps',
}

_random = np.random.default_rng(3)
# No batch has a row twice, of which Keras' Adam squares each gradient alone.
_X = _random.permutation(ROWS).reshape([NUM_EXAMPLES, WIDTH])
_Y = _random.random([NUM_EXAMPLES, 1], 'f')


def model(optimizer):
  made = keras.Sequential(
    [
      keras.layers.Input((WIDTH,), dtype='int64'),
      keras.layers.Embedding(ROWS, 8),
      keras.layers.Flatten(),
      keras.layers.Dense(16, activation='tanh'),
      keras.layers.Dense(1),
    ]
  )
  made.compile(OPTIMIZERS[optimizer](), 'mse', steps_per_execution=2)
  return made


def initialize(made):
  """Gives weights that are the same in all processes."""
  random = np.random.default_rng(5)
  made.set_weights(
    [random.normal(size=w.shape, scale=0.3) for w in made.get_weights()]
  )


def dataset(context):
  """Batches of a worker; those of all workers follow each other."""
  examples = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(SIZE)
  return examples.shard(context.num_input_pipelines, context.input_pipeline_id)


def teller(strategy, folder, slow_secs):
  """Says where training is; with SLOW, worker:1 takes its time until `go`."""

  def tell(step):
    print('at', step, flush=True)
    deadline = time.monotonic() + slow_secs
    if 'SLOW' in os.environ and strategy.task.index == 1:
      while time.monotonic() < deadline and not (folder / 'go').exists():
        time.sleep(0.02)

  return tell


def example(number):
  """One of them, by its number."""
  return tf.gather(_X, number), tf.gather(_Y, number)


def step_of(made):
  loss_fn = keras.losses.MeanSquaredError()

  def step(batch):
    x, y = batch
    with tf.GradientTape() as tape:
      loss = loss_fn(y, made(x, training=True))
    variables = made.trainable_variables
    gradients = tape.gradient(loss, variables)
    made.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return {'loss': loss}

  return step


def alone(optimizer, steps, num_workers):
  """The weights of a single process on the batches of all workers."""
  keras.utils.set_random_seed(0)
  made = model(optimizer)
  initialize(made)
  size = SIZE * num_workers
  for i in range(steps):
    rows = np.arange(i * size, (i + 1) * size) % NUM_EXAMPLES
    made.train_on_batch(_X[rows], _Y[rows])
  return made.get_weights()
