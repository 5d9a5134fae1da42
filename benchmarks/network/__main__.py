"""Measures on slow links: `python -m benchmarks.network [--quick] [name ...]`.

Each task has a host of its own, which is a network namespace of this machine.
It takes root.
"""

import sys

from benchmarks import command
from benchmarks.network import hybrid
from benchmarks.network import links
from benchmarks.network import plan
from benchmarks.network import throughput
from benchmarks.network import time_to_loss
from tfps.testing.chaos import network

BENCHMARKS = {
  'links': links.compare,
  'plan': plan.compare,
  'throughput': throughput.compare,
  'hybrid': hybrid.compare,
  'flights': time_to_loss.compare_flights,
  'images': time_to_loss.compare_images,
}


def main(args: list[str]) -> int:
  problem = network.problem()
  if problem:
    print(f'No network to measure on: {problem}', file=sys.stderr)
    return 1
  command.run('python -m benchmarks.network', str(__doc__), BENCHMARKS, args)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
