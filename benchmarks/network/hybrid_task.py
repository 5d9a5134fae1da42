"""A worker of the benchmark of hybrids: trains when it is told to.

It writes the strategy's report of what is where to the folder.

Usage: hybrid_task.py MODEL PLACE FOLDER
"""

import pathlib
import sys

from benchmarks import learned
from benchmarks import lookup
from benchmarks import orders
from benchmarks import perceptron
from benchmarks import problems
from benchmarks import trainers
import tfps

RULE, PS, WORKERS = 'rule', 'ps', 'workers'
PLACES = (RULE, PS, WORKERS)
MODELS: dict[str, trainers.Model] = {
  'flights': learned.Learned(problems.flights),
  'convnet': learned.Learned(problems.images),
  'dense': perceptron.Perceptron(num_layers=6, width=400, batch=8),
  'table': lookup.Lookup(num_rows=40_000, width=32, batch=1024),
  'tiny': perceptron.TINY,
}


def main(model: str, place: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run, strategy = trainers.hybrid(
    cluster, MODELS[model], None if place == RULE else place
  )
  if strategy.is_chief:
    pathlib.Path(folder, 'report').write_text(str(strategy.hybrid_report()))
  for order in orders.take(folder, str(cluster.task)):
    run(int(order.split()[-1]))


if __name__ == '__main__':
  main(*sys.argv[1:])
