"""Placement policies, which choose the ps of each variable.

TensorFlow assigns variables round-robin, whatever their size, so that a ps may
get two large tables. `ByteBalanced` balances bytes instead:

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
  """The load of a ps.

  Attributes:
    num_bytes: bytes of its variables, and bytes reserved for optimizer slots.
    num_variables: number of variables and shards placed on it.
  """

  num_bytes: int = 0
  num_variables: int = 0

  def plus(self, num_bytes: int) -> 'Load':
    """Returns the load with one variable more.

    Args:
      num_bytes: the size of that variable.
    """
    return Load(self.num_bytes + num_bytes, self.num_variables + 1)


class Placement(Protocol):
  """Interface of placement policies, called once for each variable."""

  @property
  def num_slots(self) -> int:
    """The number of optimizer slots to reserve for a trainable variable."""

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """Chooses a ps for each of several shards that are made together.

    Args:
      sizes: bytes of each shard; an unsharded variable is one shard.
      loads: the current load of each ps.

    Returns:
      The index of a ps for each shard.
    """


@dataclasses.dataclass(frozen=True)
class RoundRobin:
  """Places each variable or shard on the next ps, as TensorFlow does."""

  num_slots: int = dataclasses.field(default=0, init=False)

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """See `Placement`."""
    first = sum(load.num_variables for load in loads)
    return [(first + i) % len(loads) for i in range(len(sizes))]


@dataclasses.dataclass(frozen=True)
class ByteBalanced:
  """Places each variable or shard on the ps that holds the fewest bytes.

  Shards that are created together are placed largest first. The fullest ps then
  holds at most 4/3 - 1/(3 num_ps) times the bytes of an optimal placement, and
  2 - 1/num_ps times if variables are created one by one in an unlucky order
  (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969). Ties go to
  the ps with fewer variables, then to the lower index, and shards of equal size
  are assigned in the order of the ps, so that placement is deterministic.

  Attributes:
    num_slots: number of optimizer slots of the variable's size to reserve for
      each trainable variable (Adam: 2, Adagrad: 1). With 0, slots count
      from their creation on, which suffices unless trainable and other
      variables of very different sizes are mixed.

  Raises:
    ValueError: `num_slots` is negative.
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
  """Places each variable or shard where it loads the busiest link least.

  Every worker pulls all parameters and pushes all gradients, except those on a
  ps of its own host. So a ps that shares its host with many workers should hold
  more than one with a host of its own; one that shares it with few workers,
  whose pulls use the same link, should hold less. If places load the busiest
  link equally, the next busiest one decides, and so on; after all links the
  bytes on the ps, as in `ByteBalanced`.

  If all workers are equally far from every ps, the result is that of
  `ByteBalanced`. Otherwise the ps differ in bytes, and so in memory. Tables of
  which steps read some rows count in full, as the rows are unknown.

  `TopologyAware(rack_of={'h0': 'a', 'h1': 'a', 'h2': 'b'}, rack_rate=2)`

  Shards that are created together are placed largest first (list scheduling:
  R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969); placement
  is deterministic.

  Attributes:
    host_of: the host of tasks such as 'ps:0'. By default, and for tasks that it
      leaves out, the host in the cluster's address.
    rack_of: the rack of each host that has a ps or worker; None if all hosts
      are connected by one switch.
    rack_rate: the rate of a rack's link to the other racks, relative to that of
      a host's link; required with `rack_of`.
    num_slots: see `ByteBalanced`.

  Raises:
    ValueError: an option is invalid. `within` raises those of `Topology.of`.
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
    """Returns the policy for one cluster; strategies call it for theirs.

    Args:
      cluster: the cluster.

    Raises:
      ValueError: the hosts or racks do not fit the cluster.
    """
    found = topology_lib.Topology.of(cluster, self.host_of, self.rack_of)
    return WithinTopology(
      topology_lib.Loads(found, self.rack_rate or 1.0), self.num_slots
    )

  def assign(self, sizes: Sequence[int], loads: Sequence[Load]) -> list[int]:
    """See `Placement`.

    Raises:
      ValueError: always; only the result of `within` can assign.
    """
    raise ValueError(
      'TopologyAware: it does not know the cluster yet. Give it to a strategy, '
      'or call within(cluster).assign.'
    )


@dataclasses.dataclass(frozen=True)
class WithinTopology:
  """The policy `TopologyAware` for one cluster.

  Attributes:
    links: computes the load of each link.
    num_slots: see `ByteBalanced`.
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
      # Sums in different orders differ by rounding errors.
      rounded: list[float] = np.round(after, 3).tolist()
      return rounded, totals[ps].num_bytes, totals[ps].num_variables, ps

    return min(range(len(totals)), key=cost)


def within(policy: Placement, cluster: spec_lib.Cluster) -> Placement:
  """Returns a policy for a cluster; the policy itself if it needs none.

  Args:
    policy: the policy.
    cluster: the cluster.
  """
  known: Any = getattr(policy, 'within', None)
  return policy if known is None else known(cluster)


def _largest_first(
  sizes: Sequence[int],
  loads: Sequence[Load],
  choose: Callable[[Sequence[Load], int], int],
) -> list[int]:
  """Returns the ps of each size, chosen one by one in descending order."""
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
    for shard, ps in zip(shards, _round_robin(places), strict=True):
      chosen[shard] = ps
  return chosen


def _lightest(totals: Sequence[Load], size: int) -> int:
  del size
  return min(
    range(len(totals)),
    key=lambda p: (totals[p].num_bytes, totals[p].num_variables, p),
  )


def _round_robin(places: list[int]) -> list[int]:
  """Returns the ps round-robin: each once, then each that is left, ..."""
  rounds = [(places[:i].count(ps), ps) for i, ps in enumerate(places)]
  return [ps for _, ps in sorted(rounds)]
