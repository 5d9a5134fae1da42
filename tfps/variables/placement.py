"""Which ps holds which variable.

TensorFlow deals variables out in turn, whatever their size, so that two large
tables may meet on one ps. `ByteBalanced` looks at bytes instead:

`tfps.ParameterServerStrategy(cluster, placement=ByteBalanced(num_slots=2))`
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any
from typing import Protocol

import numpy as np

from tfps.cluster import spec as spec_lib
from tfps.cluster import topology as topology_lib


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
    return _largest_first(sizes, loads, _lightest)


@dataclasses.dataclass(frozen=True)
class TopologyAware:
  """Each variable or shard where it adds least to the most loaded link.

  Every worker pulls all parameters and pushes all gradients, except what is on
  a ps of its own host. So a ps that shares its host with many workers should
  hold more, and one that shares it with a few, whose pulls fill the same link,
  less than one that has its host for itself. Of places that leave the most
  loaded link as it is, the next most loaded one decides, and so on; after all
  links the bytes on the ps, as in `ByteBalanced`.

  Where all workers are as far from every ps, this is what `ByteBalanced` does.
  Where they are not, the bytes on the ps differ, and so does the memory that
  they need. Tables of which a step reads some rows count in full, as nobody
  knows beforehand which.

  `TopologyAware(rack_of={'h0': 'a', 'h1': 'a', 'h2': 'b'}, rack_rate=2)`

  What is known together is placed largest first (list scheduling: R. L. Graham,
  "Bounds on multiprocessing timing anomalies", 1969); the same program always
  gets the same placement.

  Attributes:
    host_of: the host of a task such as 'ps:0'. By default, and for tasks that
      it leaves out, that in the cluster's address.
    rack_of: the rack of each host that has a ps or worker; None if all hosts
      are joined by one switch.
    rack_rate: the rate of the link from a rack to the others, over that of a
      host's link; to be given with `rack_of`.
    num_slots: as for `ByteBalanced`.

  Raises:
    ValueError: a number cannot be; see `Topology.of`, too, once a strategy has
      it.
  """

  host_of: Mapping[str, str] | None = None
  rack_of: Mapping[str, str] | None = None
  rack_rate: float | None = dataclasses.field(default=None, kw_only=True)
  num_slots: int = dataclasses.field(default=0, kw_only=True)

  def __post_init__(self) -> None:
    if self.num_slots < 0:
      raise ValueError(
        f'TopologyAware: num_slots is {self.num_slots}. Give 0 or more.'
      )
    if self.rack_rate is not None and not self.rack_rate > 0:
      raise ValueError(
        f'TopologyAware: rack_rate is {self.rack_rate}. Give more than 0.'
      )
    if (self.rack_of is None) != (self.rack_rate is None):
      raise ValueError(
        f'TopologyAware: rack_of is {self.rack_of} and rack_rate is '
        f'{self.rack_rate}. Give both, or neither.'
      )

  def within(self, cluster: spec_lib.Cluster) -> 'WithinTopology':
    """The same, for one cluster; a strategy calls it for its own."""
    found = topology_lib.Topology.of(cluster, self.host_of, self.rack_of)
    return WithinTopology(
      topology_lib.Loads(found, self.rack_rate or 1.0), self.num_slots
    )

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """See `Placement`; not to be called before `within`."""
    raise ValueError(
      'TopologyAware: it does not know the cluster yet. Give it to a strategy, '
      'or call within(cluster).assign.'
    )


@dataclasses.dataclass(frozen=True)
class WithinTopology:
  """`TopologyAware` in a cluster.

  Attributes:
    links: tells what passes each of them.
    num_slots: as for `ByteBalanced`.
  """

  links: topology_lib.Loads
  num_slots: int = 0

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """See `Placement`."""
    return _largest_first(sizes, loads, self._choose)

  def _choose(self, totals: Sequence[Load], size: int) -> int:
    present = sum(
      (
        load.num_bytes * self.links.per_byte(ps)
        for ps, load in enumerate(totals)
      ),
      np.zeros(len(self.links.links)),
    )

    def cost(ps: int) -> tuple[list[float], int, int, int]:
      after = np.sort(present + size * self.links.per_byte(ps))[::-1]
      # Sums in another order differ by their last bits.
      rounded: list[float] = np.round(after, 3).tolist()
      return rounded, totals[ps].num_bytes, totals[ps].num_variables, ps

    return min(range(len(totals)), key=cost)


def within(policy: Placement, cluster: spec_lib.Cluster) -> Placement:
  """A policy for a cluster, if it depends on that."""
  known: Any = getattr(policy, 'within', None)
  return policy if known is None else known(cluster)


def _largest_first(
  sizes: Sequence[int],
  loads: Sequence[Load],
  choose: Callable[[Sequence[Load], int], int],
) -> list[int]:
  """Chooses a ps for each size, given what each ps holds by then."""
  totals = list(loads)

  def place(size: int) -> int:
    ps = choose(totals, size)
    totals[ps] = totals[ps].plus(size)
    return ps

  chosen = [0] * len(sizes)
  largest_first = sorted(range(len(sizes)), key=lambda i: -sizes[i])
  for size, equal in itertools.groupby(largest_first, sizes.__getitem__):
    shards = list(equal)
    places = [place(size) for _ in shards]
    for shard, ps in zip(shards, _in_turn(places), strict=True):
      chosen[shard] = ps
  return chosen


def _lightest(totals: Sequence[Load], size: int) -> int:
  del size
  return min(
    range(len(totals)),
    key=lambda p: (totals[p].num_bytes, totals[p].num_variables, p),
  )


def _in_turn(places: list[int]) -> list[int]:
  """The same ps, first each of them once, then each that is left, ..."""
  turns = [(places[:i].count(ps), ps) for i, ps in enumerate(places)]
  return [ps for _, ps in sorted(turns)]
