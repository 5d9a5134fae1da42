"""A task of the benchmarks of steady speed: trains when it is told to.

Usage: steady_task.py VARIANT MODEL FOLDER
"""

from collections.abc import Callable
import functools
import sys
from typing import Any

from benchmarks import networks
from benchmarks import orders
from benchmarks import perceptron
from benchmarks import trainers
from benchmarks import workloads
import tfps

COORDINATOR_1 = 'coordinator, 1 a call'
COORDINATOR = 'coordinator, 20 a call'
BETWEEN = 'between graphs, 20 a call'
ALL_REDUCE = 'all-reduce, 20 a call'
STOCK, UNROLLED = 'stock, 1 a call', 'stock, unrolled, 20 a call'
SINGLE = 'single process, 20 a call'
VARIANTS = (
  *(STOCK, UNROLLED, COORDINATOR_1, COORDINATOR, BETWEEN, ALL_REDUCE),
  SINGLE,
)

MODELS: dict[str, Callable[[], Any]] = {
  'mlp': networks.Mlp,
  'large': lambda: perceptron.LARGE,
  'clicks': networks.Clicks,
  'sharded': networks.Sharded,
  'keyed': networks.Keyed,
  'evicting': networks.Evicting,
  'new': networks.New,
  'drawn': networks.Drawn,
  'stored': networks.Stored,
  'features': lambda: networks.Clicks(workloads.FEATURES),
  'keyed_features': lambda: networks.Keyed(workloads.FEATURES),
  'unsharded_features': lambda: networks.Unsharded(workloads.FEATURES),
  'features_of_one_table': lambda: networks.OneTable(workloads.FEATURES),
}

_TRAINERS: dict[str, Callable[..., trainers.Run]] = {
  STOCK: functools.partial(
    trainers.stock, unrolled=True, steps_per_execution=1
  ),
  UNROLLED: functools.partial(trainers.stock, unrolled=True),
  COORDINATOR_1: lambda cluster, model: trainers.Ours(
    cluster, model, steps_per_execution=1
  ).training(),
  COORDINATOR: lambda cluster, model: trainers.Ours(cluster, model).training(),
  BETWEEN: lambda cluster, model: trainers.between_graphs(
    cluster, model, tfps.Wire()
  ),
  ALL_REDUCE: trainers.all_reduce,
  SINGLE: lambda cluster, model: trainers.alone(model),
}


def main(variant: str, model: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  run = _TRAINERS[variant](cluster, MODELS[model]())
  for num_steps in orders.numbers_of_steps(folder, str(cluster.task)):
    run(num_steps)


if __name__ == '__main__':
  main(*sys.argv[1:])
