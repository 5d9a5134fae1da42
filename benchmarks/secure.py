"""Mutual TLS between all tasks: the same steps plain and enclosed, in turns.

Tasks are enclosed in each form of `tfps.security.enclosure`, which this machine
has to allow.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import pathlib
import sys

from benchmarks import null_step_task
from benchmarks import sides
from benchmarks import steady
from benchmarks import steady_task
from benchmarks import tables
from benchmarks import workloads
from tfps.security import certificates
from tfps.security import config
from tfps.security import enclosure
from tfps.security import proxy

_MEGABYTES = 200  # of a step that reads 100 MB and adds as many
_NUM_ROUNDS = 5
_PLAIN = 'plain'
_SIDES = (_PLAIN, *enclosure.FORMS)


@dataclasses.dataclass(frozen=True)
class _Case:
  """Work of a chief.

  Attributes:
    words: module and arguments of its program, before the folder of its pipes.
    order: what it is told to do.
    steps: how often in a turn; None measures for some seconds.
    num_workers: of the cluster.
    num_ps: likewise.
  """

  words: Sequence[str]
  order: str
  steps: int | None
  num_workers: int
  num_ps: int


def _trained(model: str) -> _Case:
  return _Case(
    (steady_task.__name__, steady_task.COORDINATOR, model),
    'train',
    None,
    workloads.NUM_WORKERS,
    workloads.NUM_PS,
  )


def _null(size: str, steps: int) -> _Case:
  words = null_step_task.__name__, 'coordinator'
  return _Case(words, size, steps, 1, 1)


_CASES = {
  'null step': _null('scalar', 400),
  '100 MB read and added': _null('100 MB', 5),
  'MLP, 20 a call': _trained('mlp'),
  'embedding, 20 a call': _trained('clicks'),
}
_QUICK = ('null step',)


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """A table with a row for each case."""
  proxy.check_installed()
  turns = {
    name: _in_turns(case, quick=quick)
    for name, case in _CASES.items()
    if not quick or name in _QUICK
  }
  yield table(turns)


def table(turns: Mapping[str, steady.Turns]) -> tables.Table:
  """Makes the table of the turns of both sides, by case."""
  rows, ratios = [], []
  for name, by_side in turns.items():
    ms, cpu = (
      {side: [get(turn) for turn in each] for side, each in by_side.items()}
      for get in (_ms_per_step, lambda turn: turn.cpu_ms_per_step)
    )
    for side in by_side:
      ratios.append(tables.ratios(ms[side], ms[_PLAIN]))
      cpu_ratios = tables.ratios(cpu[side], cpu[_PLAIN])
      figures = ms[side], ratios[-1], cpu[side], cpu_ratios
      rows.append([name, side, *map(tables.with_spread, figures)])
  return tables.Table(
    'secure',
    'ms a step, plain and with mutual TLS between all tasks of one machine, in '
    'each form of enclosures',
    ('step', 'connections', 'ms', 'times', 'CPU ms', 'times'),
    rows,
    tables.Bars(
      'times as long as plain', [sorted(r)[len(r) // 2] for r in ratios]
    ),
    notes=_notes(turns),
    measured={
      name: {
        side: [dataclasses.asdict(turn) for turn in each]
        for side, each in by_side.items()
      }
      for name, by_side in turns.items()
    },
  )


def _notes(turns: Mapping[str, steady.Turns]) -> Sequence[str]:
  found = []
  for name, by_side in turns.items():
    if _CASES[name].order == '100 MB':
      rates = {
        side: tables.with_spread([_MEGABYTES / t.secs * t.steps for t in each])
        for side, each in by_side.items()
      }
      told = ', '.join(f'{rate} MB/s ({side})' for side, rate in rates.items())
      found.append(f'*{name}* moves {told}, one way after the other.')
  return tuple(found)


def _ms_per_step(turn: steady.Turn) -> float:
  return 1e3 * turn.secs / turn.steps


def _in_turns(case: _Case, *, quick: bool) -> dict[str, list[steady.Turn]]:
  by_name = {name: _side(case, name) for name in _SIDES}
  if case.steps is None:
    return steady.in_turns(by_name, quick=quick)
  turns: dict[str, list[steady.Turn]] = {name: [] for name in by_name}
  steps = 10 if quick else case.steps
  with contextlib.ExitStack() as stack:
    for one in by_name.values():
      stack.enter_context(one)
      one.run(case.order, steps)  # which traces and connects
    for _ in range(1 if quick else _NUM_ROUNDS):
      for name, one in by_name.items():
        turns[name].append(steady.take_turn(one, steps, case.order))
  return turns


def _side(case: _Case, name: str) -> sides.ProgramsSide:
  is_secured = name != _PLAIN

  def programs(folder: str) -> dict[str, sides.Program]:
    cluster = sides.local_cluster(
      chief=1, worker=case.num_workers, ps=case.num_ps
    )
    certs = pathlib.Path(folder) / 'certs'
    if is_secured:
      certificates.make(certs, cluster.tasks())
    found = {}
    for task in cluster.tasks():
      words = sides.words_of(task, [*case.words, folder])
      env = {'TF_CONFIG': cluster.with_task(task).tf_config()}
      if is_secured:
        enclose = 'tfps.security.enclose_command'
        words = [
          *(sys.executable, '-m', enclose, f'--form={name}', '--', *words)
        ]
        env |= config.Security.of_task(certs, task, 'the benchmark').env()
      found[str(task)] = sides.Program(words, env)
    return found

  return sides.ProgramsSide(programs, ['chief:0'])
