"""Shows that the network works: `python -m benchmarks.network --help`.

For each rate it measures a plain TCP connection, and a small training with
every task on a host of its own.
"""

import argparse
import json
import sys

from benchmarks.network import cluster as cluster_lib
from benchmarks.network import hosts
from benchmarks.network import train
from benchmarks.network import transfer

_RATES = (100.0, 400.0, 1000.0, 0.0)
_SECS_OF_TRANSFER = 0.5
_UNLIMITED_BYTES = 200_000_000
_FIRST_STEPS = 8
_TIMEOUT_SECS = 600.0


def main(args: list[str]) -> int:
  options = _parser().parse_args(args)
  problem = hosts.problem()
  if problem:
    print(f'No network to measure on: {problem}', file=sys.stderr)
    return 1
  print('Mbit/s   of TCP   steps/s   MB/step by ps   MB/step by workers')
  for rate in options.rates:
    limit = rate or None
    row = (f'{rate or "none":<8}', f'{_measure_tcp(limit):<8.0f}')
    print(*row, _train(limit, options), flush=True)
  return 0


def _measure_tcp(limit: float | None) -> float:
  num_bytes = (
    int(limit * 1e6 / 8 * _SECS_OF_TRANSFER) if limit else _UNLIMITED_BYTES
  )
  with hosts.Network(2, limit) as network:
    return transfer.measure(network, 0, 1, num_bytes)


def _train(limit: float | None, options: argparse.Namespace) -> str:
  """Steps a second, and megabytes that ps and workers send a step."""
  numbers = (str(_FIRST_STEPS), str(options.steps))
  with cluster_lib.NetworkCluster(
    options.workers,
    options.ps,
    limit,
    commands={'chief': [sys.executable, '-m', train.__name__, *numbers]},
    env={'TF_CPP_MIN_LOG_LEVEL': '2'},
  ) as cluster:
    status = cluster.wait('chief', 0, timeout_secs=_TIMEOUT_SECS)
    log = cluster.log('chief', 0)
    if status:
      raise RuntimeError(f'The chief ended with status {status}:\n{log}')
    megabytes = [
      sum(cluster.bytes(job, i).sent for i in range(number))
      / (_FIRST_STEPS + options.steps)
      / 1e6
      for job, number in (('ps', options.ps), ('worker', options.workers))
    ]
  result = json.loads(log.splitlines()[-1])
  steps_per_sec = options.steps / result['secs']
  return f'{steps_per_sec:<9.2f} {megabytes[0]:<15.2f} {megabytes[1]:.2f}'


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    'python -m benchmarks.network', description=__doc__
  )
  parser.add_argument(
    '--rates',
    nargs='+',
    type=float,
    default=_RATES,
    metavar='MBIT',
    help='Mbit/s of each link, each way; 0 for no limit',
  )
  parser.add_argument('--workers', type=int, default=2)
  parser.add_argument('--ps', type=int, default=2)
  parser.add_argument('--steps', type=int, default=24)
  return parser


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
