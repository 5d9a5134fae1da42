"""The chief of the benchmark of predictions: trains when told to.

Usage: plan_task.py MODEL CODEC FOLDER
"""

import sys

from benchmarks import lookup
from benchmarks import orders
from benchmarks import perceptron
from benchmarks import trainers
import tfps
from tfps import codecs

MODELS: dict[str, trainers.Model] = {
  'dense': perceptron.LARGE,
  'embedding': lookup.TABLE,
  'tiny': perceptron.TINY,
}
WIRES = {
  'none': tfps.Wire(),
  'float16': tfps.Wire(pull=codecs.Float16(), push=codecs.Float16()),
  'int8': tfps.Wire(pull=codecs.Int8(), push=codecs.Int8()),
  'topk': tfps.Wire(push=codecs.ErrorFeedback(codecs.TopK(0.01))),
  'prefetch': tfps.Wire(prefetch=1),
}
STEPS_PER_EXECUTION = 8


def main(model: str, wire: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run = trainers.Ours(
    cluster,
    MODELS[model],
    wire=WIRES[wire],
    steps_per_execution=STEPS_PER_EXECUTION,
  ).training()
  for order in orders.take(folder, str(cluster.task)):
    run(int(order.split()[-1]))


if __name__ == '__main__':
  main(*sys.argv[1:])
