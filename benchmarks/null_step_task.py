"""A task of the null-step benchmark: does steps when it is told to.

A step reads a variable and adds zeros to it: one transfer each way, no
computation. Of a sparse one it reads a few rows, and adds to these. So does the
null step of Abadi et al. 2016, "TensorFlow: a system for large-scale machine
learning". The chief, or each worker between graphs, takes orders such as
'scalar 100' from one pipe and answers through another.

Usage: null_step_task.py MODE FOLDER
"""

from collections.abc import Callable
import sys

import tensorflow as tf

from benchmarks import orders
import tfps

SIZES = {'scalar': 1, '1 MB': 250_000, '100 MB': 25_000_000}
SPARSE = '32 rows of 512 MB'
_SPARSE_SHAPE = (4_000_000, 32)
_NUM_ROWS = 32

Step = Callable[[], None]


def main(mode: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run = {
    'stock': _by_stock_coordinator,
    'coordinator': _by_coordinator,
    'between graphs': _between_graphs,
  }[mode](cluster)
  for order in orders.take(folder, str(cluster.task)):
    size, _, num_steps = order.rpartition(' ')
    run(size, int(num_steps))


def _steps(strategy: tf.distribute.Strategy) -> dict[str, Step]:
  """A step for each size."""
  with strategy.scope():
    variables = {
      size: tf.Variable(
        lambda n=number: tf.zeros([n]), name=size.replace(' ', '_')
      )
      for size, number in SIZES.items()
    }
    table = tf.Variable(lambda: tf.zeros(_SPARSE_SHAPE), name='table')
  steps = {size: _step(variable) for size, variable in variables.items()}
  return {**steps, SPARSE: _sparse_step(table)}


def _step(variable: tf.Variable) -> Step:
  @tf.function
  def step() -> None:
    # Computed where the function runs, so that the value comes and goes.
    gradient = variable.read_value() * 0.0
    variable.assign_add(gradient)

  return step


def _sparse_step(table: tf.Variable) -> Step:
  @tf.function
  def step() -> None:
    rows = tf.random.uniform([_NUM_ROWS], maxval=table.shape[0], dtype=tf.int32)
    gradient = tf.gather(table, rows) * 0.0
    table.scatter_add(tf.IndexedSlices(gradient, rows))

  return step


def _by_stock_coordinator(cluster: tfps.Cluster) -> Callable[[str, int], None]:
  strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  return _scheduling(coordinator, _steps(strategy))


def _by_coordinator(cluster: tfps.Cluster) -> Callable[[str, int], None]:
  strategy = tfps.ParameterServerStrategy(cluster)
  coordinator = tfps.Coordinator(strategy, timeout_secs=120)
  return _scheduling(coordinator, _steps(strategy))


def _scheduling(
  coordinator: tf.distribute.coordinator.ClusterCoordinator,
  steps: dict[str, Step],
) -> Callable[[str, int], None]:
  def run(size: str, num_steps: int) -> None:
    for _ in range(num_steps):
      coordinator.schedule(steps[size])
    coordinator.join()

  return run


def _between_graphs(cluster: tfps.Cluster) -> Callable[[str, int], None]:
  steps = _steps(tfps.BetweenGraphStrategy(cluster))

  def run(size: str, num_steps: int) -> None:
    for _ in range(num_steps):
      steps[size]()

  return run


if __name__ == '__main__':
  main(*sys.argv[1:])
