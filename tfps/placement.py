"""Which ps holds which variable.

TensorFlow deals variables out in turn, whatever their size, so that two large
tables may meet on one ps. `ByteBalanced` looks at bytes instead:

`tfps.ParameterServerStrategy(cluster, placement=ByteBalanced(num_slots=2))`
"""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Load:
  """What a ps holds.

  Attributes:
    num_bytes: of its variables, and of what is reserved for their slots.
    num_variables: how many variables and shards were placed on it.
  """

  num_bytes: int = 0
  num_variables: int = 0

  def plus(self, num_bytes: int) -> 'Load':
    """With one variable more."""
    return Load(self.num_bytes + num_bytes, self.num_variables + 1)


class Placement(Protocol):
  """A policy; the strategy asks it once for each variable."""

  @property
  def num_slots(self) -> int:
    """For how many optimizer slots of a trainable variable to keep room."""

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """Chooses a ps for each of several shards that are made together.

    Args:
      sizes: bytes of each shard; a variable that is not sharded is one.
      loads: what each ps holds already.

    Returns:
      The index of a ps for each shard.
    """


@dataclasses.dataclass(frozen=True)
class RoundRobin:
  """Each variable or shard on the next ps, as TensorFlow does it."""

  num_slots: int = dataclasses.field(default=0, init=False)

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """See `Placement`."""
    first = sum(load.num_variables for load in loads)
    return [(first + i) % len(loads) for i in range(len(sizes))]


@dataclasses.dataclass(frozen=True)
class ByteBalanced:
  """Each variable or shard on the ps that holds the fewest bytes.

  What is known together is placed largest first. Then the fullest ps holds at
  most 4/3 - 1/(3 num_ps) times the bytes of the best possible placement, and
  2 - 1/num_ps times when variables come one by one in an unlucky order
  (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969). Ties go to
  the ps with fewer variables, then to the lower index, and shards of one size
  are dealt out in the order of the ps, so that the same program always gets the
  same placement.

  Attributes:
    num_slots: how many optimizer slots of its own size each trainable variable
      will get (Adam: 2, Adagrad: 1), for which room is reserved. With 0, slots
      count from when they are made, which is enough unless trainable and other
      variables of very different sizes are mixed.
  """

  num_slots: int = 0

  def __post_init__(self) -> None:
    if self.num_slots < 0:
      raise ValueError(
        f'ByteBalanced: num_slots is {self.num_slots}. Give 0 or more.'
      )

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """See `Placement`."""
    totals = list(loads)
    chosen = [0] * len(sizes)
    largest_first = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    for size, equal in itertools.groupby(largest_first, sizes.__getitem__):
      shards = list(equal)
      places = [_add_to_lightest(totals, size) for _ in shards]
      for shard, ps in zip(shards, _in_turn(places), strict=True):
        chosen[shard] = ps
    return chosen


def _add_to_lightest(totals: list[Load], size: int) -> int:
  ps = min(
    range(len(totals)),
    key=lambda p: (totals[p].num_bytes, totals[p].num_variables, p),
  )
  totals[ps] = totals[ps].plus(size)
  return ps


def _in_turn(places: list[int]) -> list[int]:
  """The same ps, first each of them once, then each that is left, ..."""
  turns = [(places[:i].count(ps), ps) for i, ps in enumerate(places)]
  return [ps for _, ps in sorted(turns)]
