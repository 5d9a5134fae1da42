"""Writes into pages of docs what benchmarks have measured.

    python -m benchmarks.pages updates

For each table it takes the latest run in runs/benchmarks that was not a quick
one, and says of which there is none.
"""

import argparse
from collections.abc import Sequence
import pathlib
import sys

from benchmarks import command
from benchmarks.pages import performance
from benchmarks.pages import replication
from benchmarks.pages import runs as runs_lib
from benchmarks.pages import scaling
from benchmarks.pages import updates

_DOCS = pathlib.Path(__file__).parents[2] / 'docs'
_PAGES = {
  'performance': performance,
  'replication': replication,
  'scaling': scaling,
  'updates': updates,
}


def main(args: Sequence[str]) -> int:
  """Returns 0, or 1 if there is something that has not been measured."""
  parser = argparse.ArgumentParser(
    'python -m benchmarks.pages', description=__doc__
  )
  parser.add_argument(
    'names',
    nargs='*',
    metavar='name',
    choices=[*_PAGES, []],
    help=f'of {", ".join(_PAGES)}; by default all',
  )
  parser.add_argument('--input', type=pathlib.Path, default=command.FOLDER)
  parser.add_argument('--output', type=pathlib.Path, default=_DOCS)
  options = parser.parse_args(args)
  runs = runs_lib.latest(options.input)
  is_complete = True
  for name in options.names or _PAGES:
    missing = _PAGES[name].write(options.output / f'{name}.md', runs)
    if missing:
      is_complete = False
      print(
        f'{name}: {options.input} has no full run of {", ".join(missing)}.',
        file=sys.stderr,
      )
  return 0 if is_complete else 1


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
