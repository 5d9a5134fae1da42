"""Predictions of `tfps.plan` next to what the shaped network measures.

What the machine takes is calibrated beforehand, by trainings of one worker and
one ps. Nothing of what is predicted goes into that.
"""

from collections.abc import Iterator
import dataclasses
import functools
import os
import statistics
import time

from benchmarks import lookup
from benchmarks import perceptron
from benchmarks import sides
from benchmarks import tables
from benchmarks.network import calibration
from benchmarks.network import plan_task as task
from tfps import plan
from tfps import testing

_CALIBRATED_AT = 250.0  # Mbit/s
_SECS = 8.0  # of all turns of a configuration
_FEWEST, _MOST = 2, 5  # turns
_GOAL = 0.25


@dataclasses.dataclass(frozen=True)
class Configuration:
  """What is trained, by whom, on which links.

  Attributes:
    model: one of `plan_task.MODELS`.
    wire: one of `plan_task.WIRES`.
    num_workers: how many workers.
    num_ps: how many ps.
    mbit_per_sec: the rate of each link; None for no limit.
  """

  model: str
  wire: str
  num_workers: int
  num_ps: int
  mbit_per_sec: float | None

  def __str__(self) -> str:
    rate = self.mbit_per_sec
    links = 'no limit' if rate is None else f'{rate:g} Mbit/s'
    workers = f'{self.num_workers} worker{"s" * (self.num_workers > 1)}'
    return f'{self.model}, {self.wire}, {workers}, {self.num_ps} ps, {links}'


_CONFIGURATIONS = (
  Configuration('dense', 'none', 2, 2, 400.0),
  Configuration('dense', 'none', 2, 1, 200.0),
  Configuration('dense', 'none', 1, 2, 200.0),
  Configuration('dense', 'none', 1, 3, 300.0),
  Configuration('dense', 'none', 3, 3, 1000.0),
  Configuration('dense', 'none', 3, 1, 500.0),
  Configuration('dense', 'prefetch', 2, 2, 400.0),
  Configuration('dense', 'float16', 2, 2, 200.0),
  Configuration('dense', 'float16', 3, 2, 500.0),
  Configuration('dense', 'int8', 2, 1, 100.0),
  Configuration('dense', 'int8', 3, 2, 200.0),
  Configuration('dense', 'topk', 2, 2, 400.0),
  Configuration('embedding', 'none', 2, 1, 100.0),
  Configuration('embedding', 'int8', 3, 2, 100.0),
)


@dataclasses.dataclass(frozen=True)
class Turns:
  """What a configuration has done.

  Attributes:
    secs: a step took, all workers taken together, turn by turn.
    load: the machine's average of the last minute by then.
  """

  secs: tuple[float, ...]
  load: float

  @property
  def median(self) -> float:
    return statistics.median(self.secs)


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  found = _calibrate(quick=quick)
  chosen = _CONFIGURATIONS[:1] if quick else _CONFIGURATIONS
  rows, ratios, measured = [], [], {}
  for one in chosen:
    turns = _measure(one, quick=quick)
    prediction = plan.predict(job(one, found))
    ratio = prediction.secs_per_step / one.num_workers / turns.median
    ratios.append(ratio)
    rows.append(_row(one, turns, prediction, ratio))
    measured[str(one)] = {**dataclasses.asdict(turns), 'ratio': ratio}
    print('  '.join(rows[-1]), flush=True)
  num_near = sum(_is_near(ratio) for ratio in ratios)
  yield tables.Table(
    'plan',
    'Predicted and measured steps on links of several rates',
    ('configuration', 'ms/step', 'predicted', 'ratio', 'busiest', 'load'),
    rows,
    tables.Bars(
      'predicted over measured', ratios, [1.0] * len(ratios), 'equal'
    ),
    notes=[
      f'Within {_GOAL:.0%}: {num_near} of {len(ratios)}. {_told(found)}',
    ],
    measured={**measured, 'calibration': dataclasses.asdict(found)},
  )


def job(configuration: Configuration, machine: calibration.Machine) -> plan.Job:
  """A configuration, to be predicted."""
  wire = task.WIRES[configuration.wire]
  return plan.Job(
    model_of(configuration.model, machine),
    configuration.num_workers,
    configuration.num_ps,
    machine.links(
      configuration.mbit_per_sec or calibration.UNLIMITED_MBIT_PER_SEC
    ),
    costs=machine.costs(configuration.wire),
    pull=wire.pull,
    push=wire.push,
    prefetch=wire.prefetch,
    steps_per_execution=task.STEPS_PER_EXECUTION,
  )


def model_of(name: str, machine: calibration.Machine) -> plan.Model:
  """One of the task's models."""
  made = task.MODELS[name]
  if isinstance(made, lookup.Lookup):
    return plan.Model.of_shapes(
      [[made.width]], machine.embedding_secs
    ).with_table(made.num_rows, made.width, _distinct(made))
  return plan.Model.of_shapes(_shapes(made), 0.0)


def _shapes(model: perceptron.Perceptron) -> list[list[int]]:
  layer = [[model.width, model.width], [model.width]]
  return layer * model.num_layers + [[]]


def _distinct(model: lookup.Lookup) -> float:
  """How many different rows a batch is expected to name."""
  return model.num_rows * (1 - (1 - 1 / model.num_rows) ** model.batch)


def _calibrate(*, quick: bool) -> calibration.Machine:
  def secs(model: str, wire: str, rate: float | None = None) -> float:
    one = Configuration(model, wire, 1, 1, rate)
    turns = _measure(one, quick=quick)
    print(f'{one}: {turns.median * 1e3:.3g} ms, load {turns.load:.1f}')
    return turns.median

  def predict(
    model: str, wire: str, machine: calibration.Machine, rate: float
  ) -> float:
    one = Configuration(model, wire, 1, 1, rate)
    return plan.predict(job(one, machine)).secs_per_step

  codecs = () if quick else ('float16', 'int8', 'topk')
  measured = calibration.Measured(
    tiny=secs('tiny', 'none'),
    dense=secs('dense', 'none'),
    dense_limited=secs('dense', 'none', _CALIBRATED_AT),
    limited_mbit_per_sec=_CALIBRATED_AT,
    embedding=secs('embedding', 'none'),
    by_codec={codec: secs('dense', codec) for codec in codecs},
  )
  return calibration.calibrate(measured, predict, os.cpu_count() or 1)


def _measure(configuration: Configuration, *, quick: bool) -> Turns:
  side = sides.ClusterSide(
    lambda folder: [
      '-m',
      task.__name__,
      configuration.model,
      configuration.wire,
      folder,
    ],
    configuration.num_workers,
    configuration.num_ps,
    make_cluster=functools.partial(
      testing.ProcessCluster,
      on_hosts=True,
      mbit_per_sec=configuration.mbit_per_sec,
    ),
  )
  chunk = 2 * configuration.num_workers * task.STEPS_PER_EXECUTION
  with side:
    side.run('train', chunk // 2)  # which traces and connects
    secs = _time(side, chunk)
    if quick:
      return Turns((secs,), os.getloadavg()[0])
    number = max(_FEWEST, min(_MOST, round(_SECS / (secs * chunk))))
    steps = max(1, round(_SECS / number / (secs * chunk))) * chunk
    turns = tuple(_time(side, steps) for _ in range(number))
    return Turns(turns, os.getloadavg()[0])


def _time(side: sides.ClusterSide, steps: int) -> float:
  """Seconds a step took."""
  start = time.perf_counter()
  side.run('train', steps)
  return (time.perf_counter() - start) / steps


def _row(
  configuration: Configuration,
  turns: Turns,
  prediction: plan.Prediction,
  ratio: float,
) -> list[str]:
  predicted = prediction.secs_per_step / configuration.num_workers
  return [
    str(configuration),
    tables.with_spread([each * 1e3 for each in turns.secs]),
    f'{predicted * 1e3:.3g}',
    f'{ratio:.2f}' + ('' if _is_near(ratio) else ', off'),
    prediction.bottleneck,
    f'{turns.load:.0f}',
  ]


def _is_near(ratio: float) -> bool:
  return abs(ratio - 1) <= _GOAL


def _told(machine: calibration.Machine) -> str:
  codecs = ', '.join(
    f'{name} {rate / 1e6:.0f} MB/s'
    for name, rate in machine.codec_bytes_per_sec.items()
  )
  return (
    f'Calibrated: {machine.step_secs * 1e3:.2g} ms a step besides, '
    f'{machine.fabric_mbit_per_sec / 1e3:.2g} Gbit/s through the machine, '
    f'{machine.overhead:.0%} overhead of links, '
    f'{machine.embedding_secs * 1e3:.2g} ms to compute with embeddings'
    f'{"; codecs: " + codecs if codecs else ""}.'
  )
