"""Hosts and racks of a cluster's tasks, and the network links between them.

Traffic within a host uses no link. Traffic between hosts uses the uplink of the
sender's host and the downlink of the receiver's; between racks, also the uplink
and downlink of the racks.
"""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import ipaddress
import socket

import numpy as np

from tfps.cluster import spec as spec_lib

UP, DOWN = 'up', 'down'


@dataclasses.dataclass(frozen=True, order=True)
class Link:
  """One direction of the link of a host or a rack.

  Attributes:
    kind: 'host' or 'rack'.
    name: of the host or rack.
    direction: 'up' for sent traffic, 'down' for received traffic.
  """

  kind: str
  name: str
  direction: str

  def __str__(self) -> str:
    return f'{self.kind} {self.name}, {self.direction}'


@dataclasses.dataclass(frozen=True)
class Topology:
  """Locations of a cluster's tasks.

  Attributes:
    hosts: the host of each task.
    racks: the rack of each host; empty to ignore racks.
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
    """Derives the topology of a cluster from its addresses.

    Args:
      cluster: whose addresses contain the names of hosts.
      host_of: the host of a task such as 'ps:0', where its address does not
        contain it, as with addresses of containers.
      rack_of: the rack of each host; by default racks are ignored.

    Raises:
      ValueError: `host_of` names an unknown task, or `rack_of` lacks the host
        of a ps or worker.
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
    """Returns the tasks of a job, in the order of their indices."""
    return sorted(task for task in self.hosts if task.job == job)

  def path(
    self, source: spec_lib.Task, destination: spec_lib.Task
  ) -> tuple[Link, ...]:
    """Returns the links between two tasks; none if they share a host."""
    here, there = self.hosts[source], self.hosts[destination]
    if here == there:
      return ()
    links = [Link('host', here, UP)]
    racks = self.racks.get(here), self.racks.get(there)
    if racks[0] is not None and racks[1] is not None and racks[0] != racks[1]:
      links += [Link('rack', racks[0], UP), Link('rack', racks[1], DOWN)]
    return *links, Link('host', there, DOWN)


class Loads:
  """Loads of the links when every worker pulls and pushes all variables.

  A byte of a ps is sent to each worker on another host once, and back once.

  Args:
    topology: the locations of the tasks.
    rack_rate: bandwidth of a rack's link relative to a host's. The load of a
      rack's link counts for so much less.

  Attributes:
    links: all links that carry traffic.
    num_ps: the number of ps.
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
    """Returns the bytes on each link, given the bytes that each ps holds."""
    found = self._passes @ np.asarray(num_bytes, np.float64)
    return dict(zip(self.links, found.tolist(), strict=True))

  def per_byte(self, ps: int) -> np.ndarray:
    """Returns the load that a byte on a ps adds to each link.

    The loads of racks' links are divided by `rack_rate`.
    """
    added: np.ndarray = self._relative[:, ps]
    return added


def host_of_address(address: str) -> str:
  """Returns the host in an address."""
  return address.rpartition(':')[0].lower()


def own_host_towards(address: str) -> str:
  """Returns the host name or address by which another task reaches this one.

  Args:
    address: 'host:port' of the other task.

  Returns:
    'localhost' if the task is on this machine, else an IP address, in brackets
    if it is an IPv6 address.
  """
  host, _, port = address.rpartition(':')
  family, kind, _, _, peer = socket.getaddrinfo(
    host.strip('[]'), int(port), type=socket.SOCK_DGRAM
  )[0]
  with socket.socket(family, kind) as route:
    route.connect(peer)  # sends nothing
    own = ipaddress.ip_address(route.getsockname()[0].partition('%')[0])
  if own.is_loopback:
    return 'localhost'
  return f'[{own}]' if own.version == 6 else str(own)
