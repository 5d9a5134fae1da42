"""Many workers that make each update together, all in one process."""

from collections.abc import Iterator
import json
import subprocess
import sys
from typing import Any

from benchmarks import crowd_task as task
from benchmarks import tables

_SIZES = ((10, 2), (30, 4), (100, 10))
_NUM_STEPS = 50
_TIMEOUT_SECS = 600.0


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  found = [
    task.Found(**_train(workers, ps))
    for workers, ps in (_SIZES[:1] if quick else _SIZES)
  ]
  yield tables.Table(
    'crowd',
    f'Sync(), {_NUM_STEPS} steps, {task.STEPS_PER_EXECUTION} to an execution; '
    'all servers in one process',
    (
      'cluster',
      'steps with the mean of all',
      'ms per step',
      'ms per step and worker',
      'GB',
      'threads',
    ),
    [
      [
        f'{each.num_workers} workers, {each.num_ps} ps',
        f'{each.num_right} of {each.num_steps}',
        f'{float(f"{each.ms_per_step:.3g}"):g}',
        f'{each.ms_per_step / each.num_workers:.2g}',
        f'{each.gigabytes:.2g}',
        str(each.threads),
      ]
      for each in found
    ],
    tables.Bars('ms per step', [each.ms_per_step for each in found]),
  )


def _train(num_workers: int, num_ps: int) -> dict[str, Any]:
  arguments = map(str, (num_workers, num_ps, _NUM_STEPS))
  done = subprocess.run(
    [sys.executable, '-m', task.__name__, *arguments],
    stdout=subprocess.PIPE,
    text=True,
    timeout=_TIMEOUT_SECS,
    check=True,
  )
  found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
  return found
