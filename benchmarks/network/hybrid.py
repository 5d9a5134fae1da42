"""Hybrids next to all variables on the ps, and all with the workers.

Each side is a cluster of its own, with a host for each task. They take turns,
round by round. The first table is of the examples' models. The second one is of
models of one kind of variable, to which the rule that chooses is held: what it
says of the bytes on the busiest link, at the rate of the link, next to what a
step takes.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import statistics
import time

from benchmarks import lookup
from benchmarks import perceptron
from benchmarks import sides
from benchmarks import tables
from benchmarks import trainers
from benchmarks.network import hybrid_task as task
from tfps import testing
from tfps.variables import hybrid_placement

_MBIT_PER_SEC = 400.0
_SECS = 3.0  # of a turn
_NUM_ROUNDS = 3
_NEAR = 0.1  # as near as places are taken to be equally fast
_SIZE = trainers.HYBRID_STEPS_PER_EXECUTION


@dataclasses.dataclass(frozen=True)
class Configuration:
  """What is trained, by whom, on which links.

  Attributes:
    model: one of `hybrid_task.MODELS`.
    num_workers: how many workers.
    num_ps: how many ps.
    mbit_per_sec: the rate of each link; None for no limit.
  """

  model: str
  num_workers: int = 2
  num_ps: int = 2
  mbit_per_sec: float | None = _MBIT_PER_SEC

  def __str__(self) -> str:
    rate = self.mbit_per_sec
    links = 'no limit' if rate is None else f'{rate:g} Mbit/s'
    return (
      f'{self.model}, {self.num_workers} workers, {self.num_ps} ps, {links}'
    )


_OF_EXAMPLES = [
  Configuration(model, mbit_per_sec=rate)
  for model in ('flights', 'convnet')
  for rate in (None, _MBIT_PER_SEC)
]
_OF_ONE_KIND = [
  Configuration('dense', 2, 1),
  Configuration('dense', 2, 2),
  Configuration('dense', 3, 1),
  Configuration('dense', 3, 3),
  Configuration('table', 2, 1),
  Configuration('table', 2, 2),
  Configuration('table', 3, 1),
]

Turns = dict[str, list[float]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """Two tables."""
  of_examples = [Configuration('tiny')] if quick else _OF_EXAMPLES
  yield _examples({c: _turns(c, task.PLACES, quick=quick) for c in of_examples})
  if not quick:
    both = (task.WORKERS, task.PS)
    yield _rule({c: _turns(c, both, quick=False) for c in _OF_ONE_KIND})


def rule(configuration: Configuration) -> hybrid_placement.Rule:
  """That which chooses for a configuration."""
  model = task.MODELS[configuration.model]
  rows = model.batch if isinstance(model, lookup.Lookup) else 1
  return hybrid_placement.Rule(
    configuration.num_workers, configuration.num_ps, rows_per_step=rows
  )


def descriptions(name: str) -> list[hybrid_placement.Description]:
  """The variables of a model of one kind."""
  model = task.MODELS[name]
  if isinstance(model, lookup.Lookup):
    shapes = [(model.num_rows, model.width), (model.width,)]
    return [_of(shape, is_table=len(shape) == 2) for shape in shapes]
  assert isinstance(model, perceptron.Perceptron)
  layer: list[tuple[int, ...]] = [(model.width, model.width), (model.width,)]
  return [_of(shape, is_table=False) for shape in layer * model.num_layers]


def _of(
  shape: tuple[int, ...], *, is_table: bool
) -> hybrid_placement.Description:
  num_bytes = 4
  for size in shape:
    num_bytes *= size
  return hybrid_placement.Description('', shape, num_bytes, is_table)


def _turns(
  configuration: Configuration, places: Sequence[str], *, quick: bool
) -> Turns:
  """Seconds that a step of all workers took, by place."""
  found: Turns = {place: [] for place in places}
  with contextlib.ExitStack() as stack:
    by_place, steps = {}, {}
    for place in places:
      side = stack.enter_context(_side(configuration, place))
      chunk = _SIZE * configuration.num_workers
      side.run('train', chunk)  # which traces and connects
      secs = _secs_per_step(side, chunk, configuration)
      by_place[place] = side
      steps[place] = chunk * max(1, round(_SECS / secs / _SIZE))
    for _ in range(1 if quick else _NUM_ROUNDS):
      for place, side in by_place.items():
        number = chunk if quick else steps[place]
        found[place].append(_secs_per_step(side, number, configuration))
  medians = {p: f'{statistics.median(s) * 1e3:.3g}' for p, s in found.items()}
  print(configuration, medians, flush=True)
  return found


def _side(configuration: Configuration, place: str) -> sides.ClusterSide:
  return sides.ClusterSide(
    lambda folder: ['-m', task.__name__, configuration.model, place, folder],
    configuration.num_workers,
    configuration.num_ps,
    by_workers=True,
    make_cluster=functools.partial(
      testing.ProcessCluster,
      on_hosts=True,
      mbit_per_sec=configuration.mbit_per_sec,
    ),
  )


def _secs_per_step(
  side: sides.ClusterSide, number: int, configuration: Configuration
) -> float:
  start = time.perf_counter()
  side.run('train', number)
  return (time.perf_counter() - start) * configuration.num_workers / number


def _examples(turns: dict[Configuration, Turns]) -> tables.Table:
  rows, hybrids = [], []
  for configuration, by_place in turns.items():
    hybrid = by_place[task.RULE]
    hybrids.append(statistics.median(hybrid) * 1e3)
    rows.append(
      [
        str(configuration),
        tables.with_spread([each * 1e3 for each in hybrid]),
        *(
          tables.with_spread(tables.ratios(by_place[place], hybrid))
          for place in (task.PS, task.WORKERS)
        ),
      ]
    )
  return tables.Table(
    'hybrid',
    'Steps of all workers together, of hybrids, and how many times as long '
    'they take with all on the ps, or with the workers',
    ('configuration', 'hybrid, ms/step', 'all on ps', 'all with workers'),
    rows,
    tables.Bars('hybrid, ms/step', hybrids),
    measured={str(c): by_place for c, by_place in turns.items()},
  )


def _rule(turns: dict[Configuration, Turns]) -> tables.Table:
  rows, ratios, num_right = [], [], 0
  for configuration, by_place in turns.items():
    chooses = rule(configuration)
    costs = [chooses.costs(each) for each in descriptions(configuration.model)]
    said = {
      task.WORKERS: _ms(sum(each.workers for each in costs)),
      task.PS: _ms(sum(each.ps for each in costs)),
    }
    took = {
      place: statistics.median(by_place[place]) * 1e3 for place in by_place
    }
    chosen = min(said, key=lambda place: said[place])  # as it does if equal
    ratio = took[chosen] / min(took.values())
    num_right += ratio <= 1 + _NEAR
    ratios.append(ratio)
    rows.append(
      [
        str(configuration),
        *(
          text
          for place in (task.WORKERS, task.PS)
          for text in (
            f'{said[place]:.3g}',
            tables.with_spread([each * 1e3 for each in by_place[place]]),
          )
        ),
        chosen,
        f'{ratio:.2f}',
      ]
    )
  return tables.Table(
    'hybrid_rule',
    'What the rule says of links, and what steps take, in milliseconds',
    (
      'configuration',
      'in a ring, said',
      'measured',
      'by ps, said',
      'measured',
      'chosen',
      'of the faster',
    ),
    rows,
    tables.Bars('times what the faster place takes', ratios),
    notes=[
      f'The place chosen is the faster one, or within {_NEAR:.0%} of it, in '
      f'{num_right} of {len(rows)}.'
    ],
    measured={str(c): by_place for c, by_place in turns.items()},
  )


def _ms(num_bytes: float) -> float:
  return num_bytes * 8 / _MBIT_PER_SEC / 1e3
