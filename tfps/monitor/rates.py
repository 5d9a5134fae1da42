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
    rates: increase of each counter per second since the reading before, by the
      family's name, the task and the labels; empty at the first.
  """

  at: float
  samples: list[families.Sample]
  rates: dict[Key, float]


class Rates:
  """Makes readings with rates."""

  def __init__(self) -> None:
    self._at = 0.0
    self._values: dict[Key, float] = {}

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
    secs = at - self._at
    rates = {
      each: max(0.0, value - self._values.get(each, 0.0)) / secs
      for each, value in values.items()
      if self._at and secs > 0
    }
    self._at, self._values = at, values
    return Reading(at, found, rates)


def key(sample: families.Sample) -> Key:
  """Returns the key of a sample in `Reading.rates`."""
  return sample.family.name, sample.task, sample.labels
