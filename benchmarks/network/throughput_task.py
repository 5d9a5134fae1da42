"""The chief of the throughput benchmark: trains by a variant when told to.

Usage: throughput_task.py MODEL VARIANT FOLDER
"""

import sys

from benchmarks import orders
from benchmarks import perceptron
from benchmarks import trainers
from benchmarks.network import variants
import tfps

MODELS = {'large': perceptron.LARGE, 'tiny': perceptron.TINY}
# Ordinary form, and fastest.
STOCK, UNROLLED = 'stock', 'stock, unrolled'
STEPS_PER_EXECUTION = 32


def main(name: str, variant: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run = _trainer(variant, cluster, MODELS[name])
  for order in orders.take(folder, str(cluster.task)):
    run(int(order.split()[-1]))


def _trainer(
  variant: str, cluster: tfps.Cluster, model: perceptron.Perceptron
) -> trainers.Run:
  size = STEPS_PER_EXECUTION
  if variant in (STOCK, UNROLLED):
    return trainers.stock(
      cluster,
      model,
      unrolled=variant == UNROLLED,
      steps_per_execution=size,
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
