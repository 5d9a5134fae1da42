"""A small model with a table, and its data, for workers and one process."""

import os
import time

import keras
import numpy as np
import tensorflow as tf

SIZE, WIDTH, ROWS = 6, 4, 720
NUM_EXAMPLES = ROWS // WIDTH

_NUM_SOON = 40  # executions after which a slow worker is slower still

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


def whole(num_workers):
  """Batches for all workers together."""
  examples = tf.data.Dataset.from_tensor_slices((_X, _Y))
  return examples.repeat().batch(SIZE * num_workers)


def teller(strategy, folder, slow_secs):
  """Says where training is, and has one worker be slow, until a file `go`.

  It is the one whose number is in the environment, as SLOW. The more steps it
  has done, the slower it is: on a slow machine, too, steps are left until then.
  """
  is_slow = os.environ.get('SLOW') == str(strategy.task.index)
  began = []

  def tell(step):
    print('at', step, flush=True)
    began.append(time.monotonic())
    secs = slow_secs * (1 if len(began) < _NUM_SOON else 5)
    while is_slow and time.monotonic() < began[-1] + secs:
      if (folder / 'go').exists():
        break
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


def alone(optimizer, steps, num_workers, *, then=0):
  """The weights of a single process on the batches of all workers.

  Args:
    optimizer: by name.
    steps: how many.
    num_workers: how many batches each step has.
    then: how many steps follow, of a batch each, from the first one.
  """
  keras.utils.set_random_seed(0)
  made = model(optimizer)
  initialize(made)
  for count, size in ((steps, SIZE * num_workers), (then, SIZE)):
    for i in range(count):
      rows = np.arange(i * size, (i + 1) * size) % NUM_EXAMPLES
      made.train_on_batch(_X[rows], _Y[rows])
  return made.get_weights()
