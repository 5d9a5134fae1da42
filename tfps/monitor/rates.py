"""Rates of counters between two readings of a registry."""

from collections.abc import Iterable
import dataclasses

from tfps.monitor import families

Key = tuple[str, str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Reading:
  """All values of a process at one moment.

  Attributes:
    at: the moment, by `time.time`.
    samples: the values.
    rates: increase of each counter per second since the latest reading before
      that has it, by the family's name, the task and the labels; without those
      that are read for the first time.
  """

  at: float
  samples: list[families.Sample]
  rates: dict[Key, float]


class Rates:
  """Makes readings with rates."""

  def __init__(self) -> None:
    # The latest value of each counter, and when it was read: one of a ps may be
    # missing from a reading.
    self._latest: dict[Key, tuple[float, float]] = {}

  def reading(self, samples: Iterable[families.Sample], at: float) -> Reading:
    """Returns the reading of values.

    Args:
      samples: the values.
      at: when they were read, by `time.time`.
    """
    found = list(samples)
    values = {
      key(sample): sample.value
      for sample in found
      if sample.family.kind is families.Kind.COUNTER
      and not isinstance(sample.value, families.Buckets)
    }
    rates = {
      each: max(0.0, value - before) / (at - read_at)
      for each, value in values.items()
      for before, read_at in (self._latest.get(each, (value, at)),)
      if at > read_at
    }
    self._latest |= {each: (value, at) for each, value in values.items()}
    return Reading(at, found, rates)


def key(sample: families.Sample) -> Key:
  """Returns the key of a sample in `Reading.rates`."""
  return sample.family.name, sample.task, sample.labels
