"""A task of the wire benchmark: trains many small variables.

Usage: wire_task.py MODE WIRE FOLDER
"""

from collections.abc import Callable
import functools
import sys

from benchmarks import orders
from benchmarks import perceptron
from benchmarks import trainers
import tfps

STEPS_PER_EXECUTION = trainers.STEPS_PER_EXECUTION

WIRES = {
  'unfused': tfps.Wire(fuse=False),
  'fused': tfps.Wire(),
  'prefetch 1': tfps.Wire(prefetch=1),
  'prefetch 2': tfps.Wire(prefetch=2),
}


def main(mode: str, wire: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run = _trainer(mode, wire)(cluster, perceptron.SMALL)
  for order in orders.take(folder, str(cluster.task)):
    run(int(order.split()[-1]))


def _trainer(mode: str, wire: str) -> Callable[..., trainers.Run]:
  return {
    'stock': functools.partial(trainers.stock, unrolled=False),
    'stock, unrolled': functools.partial(trainers.stock, unrolled=True),
    'single process': lambda cluster, model: trainers.alone(model),
    'coordinator': lambda cluster, model: trainers.Ours(
      cluster, model, wire=WIRES[wire]
    ).training(),
    'between graphs': lambda cluster, model: trainers.between_graphs(
      cluster, model, WIRES[wire]
    ),
  }[mode]


if __name__ == '__main__':
  main(*sys.argv[1:])
