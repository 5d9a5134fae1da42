"""Which tasks share a host, which hosts share a rack, and the links between.

What tasks of one host send each other stays off the network. What goes to
another host leaves by the link of its own and comes in by that of the other,
and on its way from rack to rack by the links of both racks, too.
"""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses

import numpy as np

from tfps.cluster import spec as spec_lib

UP, DOWN = 'up', 'down'


@dataclasses.dataclass(frozen=True, order=True)
class Link:
  """One direction of what joins a host, or a rack, with the others.

  Attributes:
    kind: 'host' or 'rack'.
    name: of the host or rack.
    direction: 'up' for what it sends, 'down' for what it receives.
  """

  kind: str
  name: str
  direction: str

  def __str__(self) -> str:
    return f'{self.kind} {self.name}, {self.direction}'


@dataclasses.dataclass(frozen=True)
class Topology:
  """Where the tasks of a cluster are.

  Attributes:
    hosts: the host of each task.
    racks: the rack of each host; empty if they are of no interest.
  """

  hosts: Mapping[spec_lib.Task, str]
  racks: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @classmethod
  def of(
    cls,
    cluster: spec_lib.Cluster,
    host_of: Mapping[str, str] | None = None,
    rack_of: Mapping[str, str] | None = None,
  ) -> 'Topology':
    """That of a cluster.

    Args:
      cluster: whose addresses have the names of hosts.
      host_of: the host of a task such as 'ps:0', where its address does not
        tell: behind addresses of containers, for example.
      rack_of: the rack of each host; by default racks do not matter.

    Raises:
      ValueError: `host_of` names a task that there is not, or a host of a ps or
        worker is in no rack.
    """
    tasks = [*cluster.tasks('ps'), *cluster.tasks('worker')]
    given = dict(host_of or {})
    known = {str(task) for task in cluster.tasks()}
    for name in given:
      if name not in known:
        raise ValueError(
          f'host_of: {name!r} is not in the cluster, which has '
          f'{", ".join(sorted(known))}. Name its tasks.'
        )
    hosts = {
      task: given.get(str(task)) or host_of_address(cluster.address(task))
      for task in tasks
    }
    racks = dict(rack_of or {})
    for host in hosts.values():
      if racks and host not in racks:
        raise ValueError(
          f'rack_of: host {host!r} is in no rack. Give the rack of each host, '
          'or of none.'
        )
    return cls(hosts, racks)

  def tasks(self, job: str) -> list[spec_lib.Task]:
    """Those of a job, in the order of their indices."""
    return sorted(task for task in self.hosts if task.job == job)

  def path(
    self, source: spec_lib.Task, destination: spec_lib.Task
  ) -> tuple[Link, ...]:
    """The links between two tasks; none if they share a host."""
    here, there = self.hosts[source], self.hosts[destination]
    if here == there:
      return ()
    links = [Link('host', here, UP)]
    racks = self.racks.get(here), self.racks.get(there)
    if racks[0] is not None and racks[1] is not None and racks[0] != racks[1]:
      links += [Link('rack', racks[0], UP), Link('rack', racks[1], DOWN)]
    return *links, Link('host', there, DOWN)


class Loads:
  """What passes each link when every worker pulls and pushes everything.

  A byte of a ps goes to each worker on another host once, and comes back once.

  Args:
    topology: where the tasks are.
    rack_rate: that of a rack's link over that of a host's. The load of a rack's
      link counts for so much less.

  Attributes:
    links: all that something passes.
    num_ps: how many ps there are.
  """

  def __init__(self, topology: Topology, rack_rate: float = 1.0) -> None:
    ps, workers = topology.tasks('ps'), topology.tasks('worker')
    passes: dict[Link, list[int]] = collections.defaultdict(
      lambda: [0] * len(ps)
    )
    for index, task in enumerate(ps):
      for worker in workers:
        for way in ((task, worker), (worker, task)):
          for link in topology.path(*way):
            passes[link][index] += 1
    self.num_ps = len(ps)
    self.links = sorted(passes)
    self._passes = np.array([passes[link] for link in self.links], np.float64)
    self._passes = self._passes.reshape(len(self.links), len(ps))
    rates = [rack_rate if link.kind == 'rack' else 1.0 for link in self.links]
    self._relative = self._passes / np.array(rates).reshape(-1, 1)

  def of(self, num_bytes: Sequence[float]) -> dict[Link, float]:
    """The bytes that pass each link, by the bytes that each ps holds."""
    found = self._passes @ np.asarray(num_bytes, np.float64)
    return dict(zip(self.links, found.tolist(), strict=True))

  def per_byte(self, ps: int) -> np.ndarray:
    """What a byte on a ps adds to each link, in terms of a host's rate."""
    added: np.ndarray = self._relative[:, ps]
    return added


def host_of_address(address: str) -> str:
  """The name, in an address, of the host."""
  return address.rpartition(':')[0].lower()
