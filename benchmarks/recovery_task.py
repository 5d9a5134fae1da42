"""The chief of the benchmark of recovery: trains when it is told to.

Usage: recovery_task.py MODEL HOW FOLDER
"""

import pathlib
import sys
from typing import Any

from benchmarks import learned
from benchmarks import lookup
from benchmarks import orders
from benchmarks import overhead_task
from benchmarks import problems
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
_HOWS: dict[str, dict[str, Any] | None] = {
  'plain': None,
  'ready': {'every_secs': 3600.0},
  'snapshots': {},
  'replicas': {'replicas': 1},
  'copies': {'replicas': 1, 'replicate_every_secs': REPLICATE_EVERY_SECS},
}


def main(model: str, how: str, folder: str) -> None:
  cluster = tfps.resolve_cluster()
  settings, recovery = _HOWS[how], None
  if settings is not None:
    recovery = tfps.Recovery(
      pathlib.Path(folder, 'snapshots'),
      **{'every_secs': EVERY_SECS, **settings},
    )
  run = trainers.Ours(cluster, MODELS[model], recovery=recovery).training()
  for order in orders.take(folder, str(cluster.task)):
    run(int(order.rpartition(' ')[2]))


if __name__ == '__main__':
  main(*sys.argv[1:])
