"""Runs the benchmarks: `python -m benchmarks [--quick] [name ...]`."""

import argparse
import pathlib
import sys

from benchmarks import keras_fit
from benchmarks import null_step
from benchmarks import placement
from benchmarks import report
from benchmarks import wire

BENCHMARKS = {
  'placement': placement.compare,
  'null_step': null_step.compare,
  'keras_fit': keras_fit.compare,
  'wire': wire.compare,
}


def main(args: list[str]) -> int:
  options = _parser().parse_args(args)
  comparisons = []
  print(report.HEADER, flush=True)
  for name in options.names or BENCHMARKS:
    for comparison in BENCHMARKS[name](quick=options.quick):
      comparisons.append(comparison)
      print(report.as_text(comparison), flush=True)
  result = report.as_json(comparisons, quick=options.quick)
  print(f'Written to {report.write_json(result, options.output)}')
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser('python -m benchmarks', description=__doc__)
  parser.add_argument('names', nargs='*', metavar='name')
  parser.add_argument('--quick', action='store_true', help='few, small rounds')
  parser.add_argument(
    '--output', type=pathlib.Path, default=pathlib.Path('runs/benchmarks')
  )
  return parser


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
