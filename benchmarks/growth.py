"""What a key of a table takes of the memory of the ps, as the table grows.

All ids are new. TensorFlow's allocator keeps memory that variables have left as
they grew, unless its operations of oneDNN are off; so both are measured.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import sys
from typing import Any

from benchmarks import sides
from benchmarks import steady
from benchmarks import steady_task as task
from benchmarks import tables
from benchmarks import usage
from benchmarks import workloads
from tfps import testing

_CLICKS = workloads.Clicks()
_NUM_STEPS = 4_000
_NUM_QUICK_STEPS = 40
_ENVS: Mapping[str, Mapping[str, str]] = {
  'as it is': {},
  'TF_ENABLE_ONEDNN_OPTS=0': {'TF_ENABLE_ONEDNN_OPTS': '0'},
}


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  num_steps = _NUM_QUICK_STEPS if quick else _NUM_STEPS
  num_keys = num_steps * _CLICKS.batch
  rows, grown = [], []
  for name, env in _ENVS.items():
    with _side(env) as side:
      side.run('train', steady.CHUNK)  # which makes the table, and traces
      before = _megabytes(side)
      turn = steady.take_turn(side, num_steps)
      after = _megabytes(side)
    found = [
      1e6 * (a - b) / num_keys for a, b in zip(after, before, strict=True)
    ]
    grown.append(found[0])
    values = *found, turn.cpu_ms_per_step, turn.steps_per_sec
    rows.append([name, *(f'{value:.3g}' for value in values)])
  num_bytes = 8 + 2 * 4 * _CLICKS.width
  yield tables.Table(
    'growth',
    f'A table of {_CLICKS.num_rows:,} keys that gets {num_keys:,} more, of '
    f'{num_bytes} bytes each: the key, a row of {_CLICKS.width} and a slot; '
    f'in 2 shards, Adagrad, {_CLICKS.batch} new ids a step, 2 workers and 2 ps '
    'on one machine, coordinator, 20 a call',
    (
      'environment of the ps',
      'bytes of the ps for each new key',
      'and of their peak',
      'CPU ms a step',
      'steps/s',
    ),
    rows,
    tables.Bars('bytes of the ps for each new key', grown),
  )


def _side(env: Mapping[str, str]) -> sides.ClusterSide:
  def make_cluster(*args: Any, **kwargs: Any) -> testing.ProcessCluster:
    words = ['env', *(f'{name}={value}' for name, value in env.items())]
    kwargs['commands'] = {
      **kwargs['commands'],
      'ps': [*words, sys.executable, '-m', 'tfps.server'],
    }
    return testing.ProcessCluster(*args, **kwargs)

  return sides.ClusterSide(
    lambda folder: ['-m', task.__name__, task.COORDINATOR, 'new', folder],
    workloads.NUM_WORKERS,
    workloads.NUM_PS,
    make_cluster=make_cluster,
  )


def _megabytes(side: sides.ClusterSide) -> tuple[float, float]:
  """What all ps have resident, and what they have had at their peak."""
  pids = [pid for name, pid in side.pids().items() if name.startswith('ps:')]
  return (
    sum(usage.megabytes(pid) for pid in pids),
    sum(usage.peak_megabytes(pid) for pid in pids),
  )
