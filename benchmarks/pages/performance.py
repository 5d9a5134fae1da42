"""What docs/performance.md tells: all of it."""

from collections.abc import Iterator
from collections.abc import Mapping
import pathlib

from benchmarks import tables
from benchmarks.pages import runs as runs_lib

_INTRODUCTION = """\
# Performance

What the wire, its codecs and fewer updates are worth, next to TensorFlow's own
strategy. `python -m benchmarks.pages performance` has written this page from
what the commands below have measured; write nothing here by hand.
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
  'recovery-ready-flights': """\
## Recovery

What it costs to be able to [lose a ps](fault_tolerance.md): the same training
with and without. All tasks are processes of one machine, which also does what
replicas are updated by. First two models that learn, then some that compute
next to nothing, so that their steps are what they push and pull.
""",
  'recovery-ready-digits': '',
  'recovery-flights': '',
  'recovery-digits': '',
  'recovery-small': '',
  'recovery-large': '',
  'recovery-embedding': '',
  'codecs': """\
## Codecs

What encoding and decoding take by themselves. As many float32 as they are take
75 ms at 1 Gbit/s.
""",
}


def write(path: pathlib.Path, runs: Mapping[str, runs_lib.Run]) -> list[str]:
  """Writes the page anew, if there is anything to tell.

  Returns:
    The tables that have not been measured, and are left out.
  """
  missing = [name for name in _SECTIONS if name not in runs]
  if len(missing) < len(_SECTIONS):
    path.write_text('\n'.join([_INTRODUCTION, *_parts(runs)]))
  return missing


def _parts(runs: Mapping[str, runs_lib.Run]) -> Iterator[str]:
  for name, introduction in _SECTIONS.items():
    if name in runs:
      run = runs[name]
      if introduction:
        yield introduction
      yield f'{run.table.title}:\n\n{tables.as_markdown(run.table)}\n'
      yield f'{run}\n'
