"""Speed and CPU time of trainings that have been going on for a while.

Each side is in the middle of a training, and has its turn in each round: a
number of steps that took it some seconds before. What is measured is measured
from outside, and in the same way for all: the time until all tasks have done
their steps, and the CPU time of all their processes together. A step is one of
one worker, on one batch, on every side.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import statistics
import time

from benchmarks import sides
from benchmarks import steady_task as task
from benchmarks import tables
from benchmarks import usage
from benchmarks import workloads

_NUM_ROUNDS = 5
_SECS = 5.0  # of a turn
_WARM_UP_SECS = 4.0
_IDLE_SECS = 2.0
_MAX_IDLE_CPUS = 0.2
CHUNK = workloads.NUM_WORKERS * workloads.STEPS_PER_EXECUTION


@dataclasses.dataclass(frozen=True)
class Turn:
  """What a side has done in its turn.

  Attributes:
    steps: of all workers together.
    secs: how long they took.
    cpu_secs: of all tasks together, and all that they have started.
    num_bytes: that tasks have sent each other; None where it is not known.
  """

  steps: int
  secs: float
  cpu_secs: float
  num_bytes: int | None = None

  @property
  def steps_per_sec(self) -> float:
    return self.steps / self.secs

  @property
  def cpu_ms_per_step(self) -> float:
    return 1e3 * self.cpu_secs / self.steps


Turns = Mapping[str, Sequence[Turn]]


def side(variant: str, model: str) -> sides.Side:
  """One of `steady_task`: a cluster of processes, or a single process."""

  def command(folder: str) -> list[str]:
    return ['-m', task.__name__, variant, model, folder]

  if variant == task.SINGLE:
    return sides.ProcessSide(command)
  return sides.ClusterSide(
    command,
    workloads.NUM_WORKERS,
    0 if variant == task.ALL_REDUCE else workloads.NUM_PS,
    by_workers=variant in (task.BETWEEN, task.ALL_REDUCE),
  )


def in_turns(
  by_name: Mapping[str, sides.Side], *, quick: bool
) -> dict[str, list[Turn]]:
  """Starts all sides and measures them in turns.

  Args:
    by_name: the sides.
    quick: whether what is measured may mean nothing.

  Raises:
    RuntimeError: one takes CPU time, and so slows others, while it waits.
  """
  turns: dict[str, list[Turn]] = {name: [] for name in by_name}
  with contextlib.ExitStack() as stack:
    steps = {}
    for name, one in by_name.items():  # in turns, as many start slowly
      stack.enter_context(one)
      steps[name] = _warm_up(one, quick=quick)
      if not quick:
        _check_waits(name, one)
    for _ in range(1 if quick else _NUM_ROUNDS):
      for name, one in by_name.items():
        turns[name].append(take_turn(one, steps[name]))
  return turns


def of_models(
  name: str,
  title: str,
  models: Mapping[str, str],
  label: str,
  *,
  quick: bool,
) -> tables.Table:
  """Compares models that a coordinator trains with the first of them.

  Args:
    name: of the table.
    title: of the table.
    models: by the names of their rows.
    label: names the first model in the heads of columns.
    quick: whether what is measured may mean nothing.
  """
  by_name = {
    each: side(task.COORDINATOR, model) for each, model in models.items()
  }
  turns = in_turns(by_name, quick=quick)
  return table(name, title, turns, base=(next(iter(models)), label))


def take_turn(one: sides.Side, steps: int, order: str = 'train') -> Turn:
  """Does so many steps of an order."""
  pids, ports = one.pids().values(), one.ports()
  num_bytes, cpu_secs = usage.bytes_at_ports(ports), usage.tree_cpu_secs(pids)
  start = time.perf_counter()
  one.run(order, steps)
  secs = time.perf_counter() - start
  cpu_secs = usage.tree_cpu_secs(pids) - cpu_secs
  num_bytes = usage.bytes_at_ports(ports) - num_bytes
  return Turn(steps, secs, cpu_secs, num_bytes if ports else None)


def _warm_up(one: sides.Side, *, quick: bool) -> int:
  """Trains for a while; how many steps make a turn from then on.

  The first steps trace and connect, so that their time says nothing.
  """
  one.run('train', CHUNK)
  steps, turn = CHUNK, take_turn(one, CHUNK)
  while not quick and turn.secs < _WARM_UP_SECS / 2:
    steps = whole_chunks(min(8.0 * steps, _WARM_UP_SECS * turn.steps_per_sec))
    turn = take_turn(one, steps)
  return CHUNK if quick else whole_chunks(_SECS * turn.steps_per_sec)


def _check_waits(name: str, one: sides.Side) -> None:
  """Checks that a side takes no CPU time while others have their turns."""
  pids = one.pids().values()
  cpu_secs = usage.tree_cpu_secs(pids)
  time.sleep(_IDLE_SECS)
  num_cpus = (usage.tree_cpu_secs(pids) - cpu_secs) / _IDLE_SECS
  if num_cpus > _MAX_IDLE_CPUS:
    raise RuntimeError(f'{name} uses {num_cpus:.2g} CPUs while it waits.')


def whole_chunks(steps: float) -> int:
  """About so many steps, of which each worker does whole executions."""
  return max(1, round(steps / CHUNK)) * CHUNK


def table(
  name: str,
  title: str,
  turns: Turns,
  *,
  base: tuple[str, str],
  notes: Sequence[str] = (),
) -> tables.Table:
  """A row for each side, beside one of them.

  Args:
    name: of the table.
    title: likewise.
    turns: of each side, in the same rounds.
    base: the side beside which all are, and what columns call it.
    notes: what belongs to it.
  """
  rates = {n: [t.steps_per_sec for t in each] for n, each in turns.items()}
  cpu = {n: [t.cpu_ms_per_step for t in each] for n, each in turns.items()}
  columns = {
    'steps/s': rates,
    f'steps/s, times {base[1]}': _ratios(rates, base[0]),
    'CPU ms a step': cpu,
    f'CPU, times {base[1]}': _ratios(cpu, base[0]),
  }
  return tables.Table(
    name,
    title,
    ('variant', *columns, 'kB a step'),
    [
      [
        n,
        *(tables.with_spread(column[n]) for column in columns.values()),
        _kilobytes(each),
      ]
      for n, each in turns.items()
    ],
    tables.Bars(
      'steps/s of all workers together',
      [statistics.median(each) for each in rates.values()],
    ),
    notes=notes,
    measured={
      n: [dataclasses.asdict(turn) for turn in each]
      for n, each in turns.items()
    },
  )


def _ratios(
  values: Mapping[str, Sequence[float]], base: str
) -> dict[str, list[float]]:
  return {n: tables.ratios(each, values[base]) for n, each in values.items()}


def _kilobytes(turns: Sequence[Turn]) -> str:
  """The median; a dash where bytes are not counted, or there are none."""
  sizes = [
    t.num_bytes / t.steps / 1e3 for t in turns if t.num_bytes is not None
  ]
  return f'{statistics.median(sizes):.3g}' if sizes else '-'
