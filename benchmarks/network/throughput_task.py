"""The chief of the throughput benchmark: trains by a variant when told to.

All variants are strategies of this one process, on the same servers. Each is
made by its first order, such as 'Int8 64'.

Usage: throughput_task.py MODEL FOLDER
"""

import functools
import sys

from benchmarks import perceptron
from benchmarks import sides
from benchmarks import trainers
from benchmarks.network import variants
import tfps

MODELS = {'large': perceptron.LARGE, 'tiny': perceptron.TINY}
STOCK = 'stock, unrolled'
STEPS_PER_EXECUTION = 16


def main(name: str, folder: str) -> None:
  cluster, model = tfps.resolve_cluster(), MODELS[name]
  trainer = functools.cache(lambda variant: _trainer(variant, cluster, model))
  for order in sides.take_orders(folder, str(cluster.task)):
    variant, _, num_steps = order.rpartition(' ')
    trainer(variant)(int(num_steps))


def _trainer(
  variant: str, cluster: tfps.Cluster, model: perceptron.Perceptron
) -> trainers.Run:
  size = STEPS_PER_EXECUTION
  if variant == STOCK:
    return trainers.stock(
      cluster, model, unrolled=True, steps_per_execution=size
    )
  ours = variants.FAST[variant]
  return trainers.Ours(
    cluster,
    model,
    wire=ours.wire,
    updates=ours.updates,
    steps_per_execution=size,
  ).training()


if __name__ == '__main__':
  main(*sys.argv[1:])
