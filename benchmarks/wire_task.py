"""A task of the wire benchmark: trains many small variables.

Usage: wire_task.py MODE WIRE FOLDER
"""

from collections.abc import Callable
import functools
import sys
from typing import Any

import keras
import tensorflow as tf

from benchmarks import sides
import tfps
from tfps import execution
from tfps import worker_input

NUM_LAYERS = 20
WIDTH = 64
BATCH = 32
STEPS_PER_EXECUTION = 20

WIRES = {
  'unfused': tfps.Wire(fuse=False),
  'fused': tfps.Wire(),
  'prefetch 1': tfps.Wire(prefetch=1),
  'prefetch 2': tfps.Wire(prefetch=2),
}

Run = Callable[[int], None]


def main(mode: str, wire: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run = {
    'stock': _by_stock_coordinator,
    'coordinator': functools.partial(_by_coordinator, wire=wire),
    'between graphs': functools.partial(_between_graphs, wire=wire),
  }[mode](cluster)
  for order in sides.take_orders(folder, str(cluster.task)):
    run(int(order.split()[-1]))


def _variables() -> list[tf.Variable]:
  """Kernels and biases of 20 layers and a weight: 41 variables, 0.33 MB."""
  variables = [tf.Variable(1.0, name='weight')]
  for i in range(NUM_LAYERS):
    kernel = tf.eye(WIDTH) * (1 + 0.01 * i)
    variables.append(tf.Variable(kernel, name=f'kernel_{i}'))
    variables.append(tf.Variable(tf.zeros([WIDTH]), name=f'bias_{i}'))
  return variables


def _loss(variables: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
  weight, *layers = variables
  for kernel, bias in zip(layers[::2], layers[1::2], strict=True):
    x = tf.tanh(x @ kernel + bias)
  return tf.reduce_mean(tf.square(x)) * weight


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
  x = tf.random.stateless_normal([BATCH, WIDTH], [context.input_pipeline_id, 0])
  return tf.data.Dataset.from_tensors(x).repeat()


def _by_stock_coordinator(cluster: tfps.Cluster) -> Run:
  strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  with strategy.scope():
    variables = _variables()

  def step(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      loss = _loss(variables, x)
    gradients = tape.gradient(loss, variables)
    for variable, gradient in zip(variables, gradients, strict=True):
      variable.assign_sub(0.01 * gradient)

  @tf.function
  def execution(iterator: tf.data.Iterator) -> None:
    for _ in tf.range(STEPS_PER_EXECUTION):
      strategy.run(step, args=(next(iterator),))

  dataset = coordinator.create_per_worker_dataset(
    lambda: strategy.distribute_datasets_from_function(_dataset)
  )
  iterators = iter(dataset)

  def run(num_steps: int) -> None:
    for _ in range(num_steps // STEPS_PER_EXECUTION):
      coordinator.schedule(execution, args=(iterators,))
    coordinator.join()

  return run


def _step(variables: list[tf.Variable]) -> Callable[[tf.Tensor], None]:
  optimizer = keras.optimizers.SGD(0.01)
  optimizer.build(variables)

  def step(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      loss = _loss(variables, x)
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  return step


def _by_coordinator(cluster: tfps.Cluster, wire: str) -> Run:
  strategy = tfps.ParameterServerStrategy(cluster, wire=WIRES[wire])
  coordinator = tfps.Coordinator(strategy, timeout_secs=300)
  with strategy.scope():
    step = _step(_variables())
  iterators, spec = worker_input.iterators(coordinator, _dataset)
  function = _traced(strategy, step, spec, coordinator.global_step)

  def run(num_steps: int) -> None:
    for _ in range(num_steps // STEPS_PER_EXECUTION):
      coordinator.schedule(function, args=(iterators,))
    coordinator.join()

  return run


def _between_graphs(cluster: tfps.Cluster, wire: str) -> Run:
  strategy = tfps.BetweenGraphStrategy(cluster, wire=WIRES[wire])
  with strategy.scope():
    step = _step(_variables())
  dataset = _dataset(strategy.input_context())
  spec = tf.data.IteratorSpec(dataset.element_spec)
  function = _traced(strategy, step, spec, strategy.global_step)
  iterator = iter(dataset)

  def run(num_steps: int) -> None:
    for _ in range(num_steps // STEPS_PER_EXECUTION):
      function(iterator)

  return run


def _traced(
  strategy: tf.distribute.Strategy, step: Any, spec: Any, global_step: Any
) -> Any:
  """What the training loops call, without the time to trace it."""
  with strategy.scope():
    return execution.trace(
      strategy,
      step,
      spec,
      global_step=global_step,
      num_steps=STEPS_PER_EXECUTION,
    ).function


if __name__ == '__main__':
  main(*sys.argv[1:])
