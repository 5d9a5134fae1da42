"""Every kind of strategy with ps, and a training loop for all of them."""

import keras
import tensorflow as tf

import tfps
import tfps.keras

STRATEGIES = {
  'coordinator': lambda c: tfps.ParameterServerStrategy(c),
  'sync': lambda c: tfps.ParameterServerStrategy(
    c, updates=tfps.updates.Sync()
  ),
  'bounded': lambda c: tfps.ParameterServerStrategy(
    c, updates=tfps.updates.BoundedStaleness(2)
  ),
  'accumulated': lambda c: tfps.ParameterServerStrategy(
    c, updates=tfps.updates.Accumulate(2)
  ),
  'unfused': lambda c: tfps.ParameterServerStrategy(
    c, wire=tfps.Wire(fuse=False)
  ),
  'prefetching': lambda c: tfps.ParameterServerStrategy(
    c, wire=tfps.Wire(prefetch=1)
  ),
  'between graphs': lambda c: tfps.BetweenGraphStrategy(c),
  'in graph': lambda c: tfps.replication.InGraphStrategy(c),
  'hybrid': lambda c: tfps.replication.HybridStrategy(c),
}
# Those that are a worker themselves, so that a cluster of one worker is used.
ALONE = ('between graphs', 'hybrid')


def train(strategy, step, dataset_fn, steps):
  """Trains by a strategy, four steps in each execution."""
  arguments = {'steps': steps, 'steps_per_execution': 4}
  if hasattr(strategy, 'train'):
    strategy.train(step, dataset_fn, **arguments)
    return
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(step, dataset_fn, **arguments)


def train_sums(strategy, tables, dataset_fn, steps):
  """Trains tables of zeros, so that each update takes 1 from a key's elements.

  For each time that the key is in the batches of the update, that is.

  Returns:
    The optimizer.
  """
  with strategy.scope():
    for table in tables:
      table.build()
    variables = [v for table in tables for v in table.trainable_variables]
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(variables)

  def step(keys):
    with tf.GradientTape() as tape:
      loss = sum(tf.reduce_sum(table.lookup(keys)) for table in tables)
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  train(strategy, step, dataset_fn, steps)
  return optimizer
