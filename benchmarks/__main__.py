"""Runs the benchmarks: `python -m benchmarks [--quick] [name ...]`."""

import sys

from benchmarks import codecs
from benchmarks import command
from benchmarks import crowd
from benchmarks import dense
from benchmarks import dlrm
from benchmarks import embedding
from benchmarks import first_step
from benchmarks import growth
from benchmarks import keras_fit
from benchmarks import null_step
from benchmarks import observed
from benchmarks import overhead
from benchmarks import placement
from benchmarks import recovery
from benchmarks import secure
from benchmarks import storage
from benchmarks import updates
from benchmarks import wire
from benchmarks.peers import comparison as peers

BENCHMARKS = {
  'placement': placement.compare,
  'null_step': null_step.compare,
  'keras_fit': keras_fit.compare,
  'first_step': first_step.compare,
  'dlrm': dlrm.compare,
  'dense': dense.compare,
  'embedding': embedding.compare,
  'storage': storage.compare,
  'growth': growth.compare,
  'peers': peers.compare,
  'wire': wire.compare,
  'overhead': overhead.compare,
  'codecs': codecs.compare,
  'recovery': recovery.compare,
  'updates': updates.compare,
  'crowd': crowd.compare,
  'secure': secure.compare,
  'observed': observed.compare,
}


def main(args: list[str]) -> int:
  command.run('python -m benchmarks', str(__doc__), BENCHMARKS, args)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
