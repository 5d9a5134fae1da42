"""The chief of the benchmark of recovery: trains when it is told to.

Usage: recovery_task.py MODEL (plain | cuts | replicas | snapshots) FOLDER
"""

import pathlib
import sys

from benchmarks import learned
from benchmarks import lookup
from benchmarks import overhead_task
from benchmarks import problems
from benchmarks import sides
from benchmarks import trainers
import tfps

MODELS: dict[str, trainers.Model] = {
  **overhead_task.MODELS,
  'embedding': lookup.TABLE,
  'flights': learned.Learned(problems.flights),
  'digits': learned.Learned(problems.images),
}
EVERY_SECS = 5.0
REPLICATE_EVERY_SECS = 1.0


def main(model: str, how: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  recovery = None
  if how != 'plain':
    recovery = tfps.Recovery(
      pathlib.Path(folder) / 'cuts',
      every_secs=EVERY_SECS,
      replicas=0 if how == 'cuts' else 1,
      replicate_every_secs=REPLICATE_EVERY_SECS if how == 'snapshots' else None,
    )
  run = trainers.Ours(cluster, MODELS[model], recovery=recovery).training()
  for order in sides.take_orders(folder, str(cluster.task)):
    run(int(order.rpartition(' ')[2]))


if __name__ == '__main__':
  main(*sys.argv[1:])
