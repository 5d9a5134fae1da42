"""Steps per second of variants of the wire on slow links, against the limit.

Two workers, two ps and a chief have a host each. Each variant has such a
cluster and network of its own: on the same servers, what one has left in their
memory slows down the next. One trains at a time; they take turns, round by
round.

No variant can do more steps per second than the rate of the busiest link
allows: the bytes that its host's interface has sent, or received, over the
steps that were done meanwhile say how much a step takes.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import statistics
import time

from benchmarks import machine
from benchmarks import sides
from benchmarks import tables
from benchmarks.network import throughput_task as task
from benchmarks.network import variants
from tfps import testing

_MBIT_PER_SEC = 400.0
_BYTES_PER_SEC = _MBIT_PER_SEC * 1e6 / 8
_NUM_WORKERS = _NUM_PS = 2
_NUM_ROUNDS = 3
_SECS = 5.0  # of a turn
_CHUNK = _NUM_WORKERS * task.STEPS_PER_EXECUTION
_HOSTS = [
  (job, index)
  for job, number in (('ps', _NUM_PS), ('worker', _NUM_WORKERS))
  for index in range(number)
]


@dataclasses.dataclass(frozen=True)
class Turn:
  """What a variant has done in its turn.

  Attributes:
    steps: of all workers together.
    secs: how long they took.
    cpu_secs: for how long this machine's cpus were busy, taken together.
    ps_bytes: sent and received by each host of a ps.
    worker_bytes: likewise, of workers.
  """

  steps: int
  secs: float
  cpu_secs: float
  ps_bytes: Sequence[int]
  worker_bytes: Sequence[int]

  @property
  def steps_per_sec(self) -> float:
    return self.steps / self.secs

  @property
  def busiest_bytes_per_step(self) -> float:
    """In the busiest direction of the busiest link."""
    return max(*self.ps_bytes, *self.worker_bytes) / self.steps

  @property
  def limit(self) -> float:
    """The steps per second that the busiest link allows."""
    return _BYTES_PER_SEC / self.busiest_bytes_per_step

  @property
  def busy_cpus(self) -> float:
    return self.cpu_secs / self.secs


Turns = Mapping[str, Sequence[Turn]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  model = 'tiny' if quick else 'large'
  turns: dict[str, list[Turn]] = {
    name: [] for name in (task.STOCK, task.UNROLLED, *variants.FAST)
  }
  with contextlib.ExitStack() as stack:
    by_name, steps = {}, {}
    for name in turns:  # one after the other, as many processes start slowly
      by_name[name] = stack.enter_context(_side(model, name))
      steps[name] = _steps(by_name[name], 0.0 if quick else _SECS)
    for _ in range(1 if quick else _NUM_ROUNDS):
      for name, side in by_name.items():
        turns[name].append(_take_turn(side, steps[name]))
  yield _table(turns, task.MODELS[model].num_bytes)


def _side(model: str, name: str) -> sides.ClusterSide:
  return sides.ClusterSide(
    lambda folder: ['-m', task.__name__, model, name, folder],
    _NUM_WORKERS,
    _NUM_PS,
    make_cluster=functools.partial(
      testing.ProcessCluster, on_hosts=True, mbit_per_sec=_MBIT_PER_SEC
    ),
  )


def _steps(side: sides.ClusterSide, secs: float) -> int:
  """How many steps make a turn; the first ones trace and connect."""
  side.run('train', _CHUNK)
  turn = _take_turn(side, _CHUNK)
  return max(1, round(secs * turn.steps_per_sec / _CHUNK)) * _CHUNK


def _take_turn(side: sides.ClusterSide, steps: int) -> Turn:
  before, cpu_secs = _bytes(side), machine.cpu_secs()
  start = time.perf_counter()
  side.run('train', steps)
  secs = time.perf_counter() - start
  cpu_secs = machine.cpu_secs() - cpu_secs
  counted = {host: b - before[host] for host, b in _bytes(side).items()}
  ps, workers = (
    [n for h, b in counted.items() if h[0] == job for n in (b.sent, b.received)]
    for job in ('ps', 'worker')
  )
  return Turn(steps, secs, cpu_secs, ps, workers)


def _bytes(side: sides.ClusterSide) -> dict[tuple[str, int], testing.Traffic]:
  """What has passed each host's interface so far."""
  return {host: side.processes.traffic(*host) for host in _HOSTS}


def _table(turns: Turns, num_bytes: int) -> tables.Table:
  rates = {
    name: [t.steps_per_sec for t in each] for name, each in turns.items()
  }
  limits = [_median(t.limit for t in each) for each in turns.values()]
  rows = [
    [
      name,
      tables.with_spread(rates[name]),
      tables.with_spread(tables.ratios(rates[name], rates[task.STOCK])),
      f'{_median(t.busiest_bytes_per_step for t in each) / 1e6:.3g}',
      f'{limit:.3g}',
      f'{_median(t.steps_per_sec / t.limit for t in each):.0%}',
      f'{_median(t.busy_cpus for t in each):.2g}',
    ]
    for (name, each), limit in zip(turns.items(), limits, strict=True)
  ]
  return tables.Table(
    'throughput',
    f'Links of {_MBIT_PER_SEC:g} Mbit/s, {num_bytes / 1e6:.2g} MB of '
    f'parameters, {_NUM_WORKERS} workers, {_NUM_PS} ps',
    (
      'variant',
      'steps/s',
      'times stock',
      'MB a step on the busiest link',
      'limit, steps/s',
      'of the limit',
      'cpus busy',
    ),
    rows,
    tables.Bars(
      'steps/s of all workers together',
      [_median(each) for each in rates.values()],
      limits,
      'limit of the busiest link',
    ),
    measured={
      name: [dataclasses.asdict(t) for t in each]
      for name, each in turns.items()
    },
  )


def _median(values: Iterator[float] | Sequence[float]) -> float:
  return statistics.median(values)
