"""What the commands that run benchmarks have in common."""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
import time

from benchmarks import curves
from benchmarks import machine as machine_lib
from benchmarks import picture
from benchmarks import report
from benchmarks import tables

FOLDER = pathlib.Path('runs/benchmarks')

Benchmark = Callable[..., Iterator[report.Found]]


def run(
  program: str,
  description: str,
  benchmarks: Mapping[str, Benchmark],
  args: Sequence[str],
) -> None:
  """Runs benchmarks, shows what they find and writes it to files.

  Args:
    program: how the command is called, such as 'python -m benchmarks'.
    description: for its help.
    benchmarks: by name. Each gets whether to be `quick`.
    args: the command's.
  """
  options = _parser(program, description, benchmarks).parse_args(args)
  machine = machine_lib.Machine.now()
  start = time.perf_counter()
  found = []
  print(report.HEADER, flush=True)
  for name in options.names or benchmarks:
    for one in benchmarks[name](quick=options.quick):
      found.append(one)
      print(report.as_text(one), flush=True)
  result = report.as_json(
    found,
    machine,
    command=' '.join([program, *args]),
    secs=time.perf_counter() - start,
    quick=options.quick,
  )
  path = report.write_json(result, options.output)
  for one in found:
    if isinstance(one, tables.Table):
      picture.draw(one, path.with_name(f'{path.stem}-{one.name}.png'))
    elif isinstance(one, curves.Curves):
      curves.draw(one, path.with_name(f'{path.stem}-{one.name}.png'))
  print(f'Written to {path}')


def _parser(
  program: str, description: str, benchmarks: Mapping[str, Benchmark]
) -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(program, description=description)
  parser.add_argument(
    'names',
    nargs='*',
    metavar='name',
    choices=[*benchmarks, []],
    help=f'of {", ".join(benchmarks)}; by default all',
  )
  parser.add_argument('--quick', action='store_true', help='few, small rounds')
  parser.add_argument('--output', type=pathlib.Path, default=FOLDER)
  return parser
