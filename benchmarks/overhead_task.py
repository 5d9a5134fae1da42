"""A task of the benchmark of the overhead: does parts of steps when told to.

Usage: overhead_task.py MODEL WHERE FOLDER
"""

from collections.abc import Callable
import functools
import sys

import tensorflow as tf

from benchmarks import orders
from benchmarks import perceptron
from benchmarks import trainers
import tfps

MODELS = {
  'small': perceptron.SMALL,
  'large': perceptron.LARGE,
  'tiny': perceptron.TINY,
}
# What a chief can do, in the order in which parts add up to a step.
WHAT = (
  'stock, unrolled',
  'nothing',
  'pull',
  'pull and compute',
  'all',
  'prefetch 1',
)


def main(name: str, where: str, folder: str) -> None:
  cluster, model = tfps.resolve_cluster(), MODELS[name]
  alone = where == 'single process'
  trainer = _alone(model) if alone else _trainer(cluster, model)
  for order in orders.take(folder, str(cluster.task)):
    what, _, num_steps = order.rpartition(' ')
    trainer(what)(int(num_steps))


def _alone(model: perceptron.Perceptron) -> Callable[[str], trainers.Run]:
  run = trainers.alone(model)
  return lambda what: run


def _trainer(
  cluster: tfps.Cluster, model: perceptron.Perceptron
) -> Callable[[str], trainers.Run]:
  """Makes each when it is asked for first."""
  ours = functools.cache(lambda: trainers.Ours(cluster, model))
  prefetching = tfps.Wire(prefetch=1)
  make = {
    'stock, unrolled': lambda: trainers.stock(cluster, model, unrolled=True),
    'nothing': lambda: ours().repeating(_nothing),
    'pull': lambda: ours().repeating(_pull(ours())),
    'pull and compute': lambda: ours().repeating(_compute(model, ours())),
    'all': lambda: ours().training(),
    'prefetch 1': lambda: trainers.Ours(
      cluster, model, wire=prefetching
    ).training(),
  }
  return functools.cache(lambda what: make[what]())


def _nothing(x: tf.Tensor) -> None:
  del x


def _pull(ours: trainers.Ours) -> trainers.Step:
  def step(x: tf.Tensor) -> dict[str, tf.Tensor]:
    del x
    return {'some': _some([v.read_value() for v in ours.variables])}

  return step


def _compute(
  model: perceptron.Perceptron, ours: trainers.Ours
) -> trainers.Step:
  def step(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {'some': _some(model.gradients(ours.variables, x))}

  return step


def _some(values: list[tf.Tensor]) -> tf.Tensor:
  """A number that takes all values to be there, and next to no time."""
  return tf.add_n([tf.reshape(value, [-1])[0] for value in values])


if __name__ == '__main__':
  main(*sys.argv[1:])
