"""What this machine takes, from trainings of one worker and one ps.

Each constant is the one by which the simulation predicts what was measured. All
hosts of the network are processes of one machine, so that what it can move
limits them together.
"""

from collections.abc import Callable
import dataclasses
import functools
import math

from tfps import plan

# A rate that nothing here comes near to.
UNLIMITED_MBIT_PER_SEC = 1e6
_STEPS_OF_SEARCH = 14


@dataclasses.dataclass(frozen=True)
class Measured:
  """Seconds a step took one worker with one ps.

  Attributes:
    tiny: of next to nothing, without a limit.
    dense: of the dense model, without a limit.
    dense_limited: on links of `limited_mbit_per_sec`.
    limited_mbit_per_sec: their rate.
    embedding: of the model with embeddings, without a limit.
    by_codec: of the dense model with a codec, by its name, without a limit.
  """

  tiny: float
  dense: float
  dense_limited: float
  limited_mbit_per_sec: float
  embedding: float
  by_codec: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Machine:
  """The constants.

  Attributes:
    step_secs: what a step takes besides computing and sending.
    fabric_mbit_per_sec: what the machine moves between its processes.
    overhead: the part by which links take longer than their rate says.
    embedding_secs: what a step of the model with embeddings computes.
    codec_bytes_per_sec: how fast each codec encodes, by its name.
    num_cpus: of the machine.
  """

  step_secs: float
  fabric_mbit_per_sec: float
  overhead: float
  embedding_secs: float
  codec_bytes_per_sec: dict[str, float]
  num_cpus: int

  def links(self, mbit_per_sec: float) -> plan.Links:
    """Those of the shaped network."""
    return plan.Links(
      mbit_per_sec,
      fabric_mbit_per_sec=self.fabric_mbit_per_sec,
      overhead=self.overhead,
    )

  def costs(self, codec: str) -> plan.Costs:
    """With a codec."""
    return plan.Costs(
      step_secs=self.step_secs,
      execution_secs=0.0,
      message_secs=0.0,
      codec_bytes_per_sec=self.codec_bytes_per_sec.get(codec, 1e12),
      shared_cpus=self.num_cpus,
    )


Predict = Callable[[str, str, Machine, float], float]


def calibrate(measured: Measured, predict: Predict, num_cpus: int) -> Machine:
  """The machine that explains what was measured.

  Args:
    measured: with one worker and one ps.
    predict: gives a step's seconds with one of each, by the names of the model
      and the codec, the machine, and the links' rate.
    num_cpus: of the machine.
  """
  machine = Machine(measured.tiny, 1e6, 0.0, 0.0, {}, num_cpus)

  def fit(
    change: Callable[[float], Machine],
    model: str,
    codec: str,
    secs: float,
    between: tuple[float, float],
    *,
    rate: float = UNLIMITED_MBIT_PER_SEC,
  ) -> Machine:
    def excess(value: float) -> float:
      return predict(model, codec, change(value), rate) - secs

    return change(_root(excess, *between))

  machine = fit(
    functools.partial(_with_fabric, machine),
    *('dense', 'none', measured.dense, (100.0, 1e6)),
  )
  machine = fit(
    functools.partial(_with_embedding, machine),
    *('embedding', 'none', measured.embedding, (1e-6, 1.0)),
  )

  machine = fit(
    functools.partial(_with_overhead, machine),
    *('dense', 'none', measured.dense_limited, (1e-4, 1.0)),
    rate=measured.limited_mbit_per_sec,
  )
  for codec, secs in measured.by_codec.items():
    change = functools.partial(_with_codec, machine, codec)
    machine = fit(change, 'dense', codec, secs, (1e7, 1e12))
  return machine


def _with_fabric(machine: Machine, rate: float) -> Machine:
  return dataclasses.replace(machine, fabric_mbit_per_sec=rate)


def _with_overhead(machine: Machine, overhead: float) -> Machine:
  return dataclasses.replace(machine, overhead=overhead)


def _with_embedding(machine: Machine, secs: float) -> Machine:
  return dataclasses.replace(machine, embedding_secs=secs)


def _with_codec(machine: Machine, codec: str, rate: float) -> Machine:
  rates = {**machine.codec_bytes_per_sec, codec: rate}
  return dataclasses.replace(machine, codec_bytes_per_sec=rates)


def _root(of: Callable[[float], float], low: float, high: float) -> float:
  """Where a monotonic function is 0, or the nearer end; by bisection."""
  at_low, at_high = of(low), of(high)
  if at_low * at_high > 0:
    return low if abs(at_low) < abs(at_high) else high
  for _ in range(_STEPS_OF_SEARCH):
    middle = math.sqrt(low * high)
    if of(middle) * at_low > 0:
      low = middle
    else:
      high = middle
  return math.sqrt(low * high)
