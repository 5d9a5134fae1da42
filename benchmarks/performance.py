"""Writes docs/performance.md from what the benchmarks have measured.

    python -m benchmarks.performance

For each table it takes the latest run in runs/benchmarks that was not a quick
one. A table that has not been measured is left out, and said to be.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import pathlib
import sys
from typing import Any

from benchmarks import command
from benchmarks import tables

_PAGE = pathlib.Path(__file__).parents[1] / 'docs/performance.md'
_INTRODUCTION = """\
# Performance

What the wire, its codecs and fewer updates are worth, next to TensorFlow's own
strategy. `python -m benchmarks.performance` has written this page from what the
commands below have measured; write nothing here by hand.
[Building](../BUILD.md) tells how long they take, [the wire](wire.md) what the
variants are.

Variants take turns in one run, so that whatever else the machine does meets all
of them. Figures are medians, with the lowest and the highest in parentheses;
ratios are medians of the ratios of each round.
"""

# What to say of each table, before it.
_SECTIONS = {
  'throughput': """\
## Slow links

Two workers, two ps and a chief are hosts on links of their own. *Stock* is
`tf.distribute.ParameterServerStrategy` with `ClusterCoordinator`, whose
executions loop over steps; *unrolled*, the steps are laid out one after
another, which is the fastest form. All executions have 32 steps. All codecs
encode both ways.

A step cannot be faster than the busiest link allows: its bytes, headers
included, as counted at the interfaces of ps and workers, over the rate of the
link, each direction for itself. The computation is small, and all hosts are
processes of one machine: where all of its cpus are busy, it is they that bind,
not the links.
""",
  'flights': """\
## Time to a loss

Keras' `fit` with a coordinator, and the same Keras model in a custom loop under
the stock strategy, which cannot run Keras 3's `fit`. Each learns from the same
batches, from the same values on. Time is that of training alone: it begins
after a first stretch of steps, in which functions are traced and data travels,
and stands still while the loss is looked at. One run for each.
""",
  'images': '',
  'overhead-small': """\
## One ps and one worker

All tasks are on one machine, which they share. The lines that begin with a dash
are parts of the line above them: each is the difference between two trainings
of which the second does that part, too. A single process has no ps.
""",
  'overhead-large': '',
  'wire': """\
## Many small variables

All tasks are processes of one machine, 20 steps to an execution. The single
process has all of the machine for itself.
""",
  'recovery-small': """\
## Recovery

What it costs to be able to [lose a ps](fault_tolerance.md): the same training
with and without. All tasks are processes of one machine, which also does what
replicas are updated by.
""",
  'recovery-large': '',
  'recovery-embedding': '',
  'codecs': """\
## Codecs

What encoding and decoding take by themselves. As many float32 as they are take
75 ms at 1 Gbit/s.
""",
}


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of a command that has measured a table.

  Attributes:
    report: what it wrote.
    table: the one in question.
  """

  report: Mapping[str, Any]
  table: tables.Table

  def __str__(self) -> str:
    machine, secs = self.report['machine'], self.report['secs']
    packages = ', '.join(f'{n} {v}' for n, v in machine['packages'].items())
    return (
      f'`{self.report["command"]}`, {self.report["date"][:10]}, '
      f'{secs / 60:.0f} minutes. {machine["cpus"]} cpus ({machine["cpu"]}), '
      f'{machine["gigabytes"]:.0f} GB, Python {machine["python"]}, {packages}. '
      f'Before it, other programs kept {machine["busy"]:.1f} cpus busy; the '
      f'load was {machine["load"]:.1f}.'
    )


def main(args: Sequence[str]) -> int:
  parser = argparse.ArgumentParser(
    'python -m benchmarks.performance', description=__doc__
  )
  parser.add_argument('--input', type=pathlib.Path, default=command.FOLDER)
  parser.add_argument('--output', type=pathlib.Path, default=_PAGE)
  options = parser.parse_args(args)
  runs = latest(options.input)
  if not runs:
    print(
      f'{options.input} has no table that was measured in full. Run one of the '
      'benchmarks first, without --quick.',
      file=sys.stderr,
    )
    return 1
  missing = [name for name in _SECTIONS if name not in runs]
  if missing:
    print(f'Not measured, and left out: {", ".join(missing)}', file=sys.stderr)
  options.output.write_text(page(runs))
  return 0


def latest(folder: pathlib.Path) -> dict[str, Run]:
  """The latest run of each table, quick ones left out."""
  runs: dict[str, Run] = {}
  for path in sorted(folder.glob('*.json')):
    report = json.loads(path.read_text())
    for entry in report.get('tables', ()) if not report['quick'] else ():
      table = tables.Table.from_json(entry)
      runs[table.name] = Run(report, table)
  return runs


def page(runs: Mapping[str, Run]) -> str:
  """The page that tells of them."""
  return '\n'.join([_INTRODUCTION, *_parts(runs)])


def _parts(runs: Mapping[str, Run]) -> Iterator[str]:
  for name, introduction in _SECTIONS.items():
    if name in runs:
      run = runs[name]
      if introduction:
        yield introduction
      yield f'{run.table.title}:\n\n{tables.as_markdown(run.table)}\n'
      yield f'{run}\n'


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
