"""Doors of an enclosure: the ports that lead into it and out of it."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import socket

from tfps.cluster import spec as spec_lib
from tfps.monitor import dashboard
from tfps.monitor import endpoint

ALL_INTERFACES = '0.0.0.0'

_BACKLOG = 512
_PORTS = {'metrics': endpoint.VARIABLE, 'page': dashboard.VARIABLE}


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a port is served, outside and within.

  Attributes:
    name: the task, or what is served.
    host: as in the cluster specification.
    ip: its IPv4 address.
    port: the same on both sides.
  """

  name: str
  host: str
  ip: str
  port: int

  @classmethod
  def of(cls, name: str, address: str, source: str) -> 'Place':
    """Returns the place of an address.

    Args:
      name: the task, or what is served there.
      address: 'host:port'.
      source: of the address, for errors.

    Raises:
      ValueError: an enclosure cannot lead there.
    """
    host, _, port = address.rpartition(':')
    where = f'{source}: {name} has the address {address!r}'
    if host.startswith('['):
      raise ValueError(
        f'{where}, and enclosed programs use IPv4 only. Give a name or IPv4 '
        'address.'
      )
    if not int(port):
      raise ValueError(
        f'{where}, and nothing leads to a port that is not known before. Give '
        'each task a port.'
      )
    try:
      ip = socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]
    except OSError as error:
      raise ValueError(
        f'{where}, whose host is unknown: {error}. Correct it.'
      ) from error
    return cls(name, host, str(ip), int(port))

  def listen(self, *, outside: bool) -> socket.socket:
    """Returns a socket that listens at the place.

    Args:
      outside: whether it is outside of the enclosure, where a name may stand
        for another address than for other hosts: it is on all interfaces.

    Raises:
      ValueError: the port is in use.
    """
    is_named = outside and self.host not in ('localhost', self.ip)
    ip = ALL_INTERFACES if is_named else self.ip
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      listener.bind((ip, self.port))
      listener.listen(_BACKLOG)
    except OSError as error:
      listener.close()
      raise ValueError(
        f'{self.name} cannot be served at {ip}:{self.port}: {error.strerror}. '
        'End what uses the port, or give another one.'
      ) from error
    return listener


@dataclasses.dataclass(frozen=True)
class Plan:
  """Doors of an enclosure: what its program serves, and what it may call.

  Attributes:
    served: places of the program's own ports; the first is its server's.
    peers: places of the other tasks.
  """

  served: tuple[Place, ...]
  peers: Mapping[spec_lib.Task, Place]

  @classmethod
  def of(cls, cluster: spec_lib.Cluster, env: Mapping[str, str]) -> 'Plan':
    """Returns the doors that the cluster's own task needs.

    Args:
      cluster: the cluster, with the task if it is to serve.
      env: the program's environment, which may give ports for metrics and for
        the web page.

    Raises:
      ValueError: an address cannot be served or called.
    """
    places = {
      task: Place.of(str(task), cluster.address(task), cluster.source)
      for task in cluster.tasks()
    }
    own = places.pop(cluster.task, None) if cluster.task else None
    served = [own] if own else []
    for name, variable in _PORTS.items():
      if text := env.get(variable, '').strip():
        host, port = endpoint.parse(text, variable)
        served.append(Place.of(name, f'{host}:{port}', variable))
    _check_ports(served, places, cluster.source)
    return cls(tuple(served), places)

  def hosts(self) -> str | None:
    """Returns lines for /etc/hosts; None if no place has a name."""
    all_places = [*self.served, *self.peers.values()]
    names = {place.host: place.ip for place in all_places}
    named = {h: ip for h, ip in names.items() if h not in ('localhost', ip)}
    lines = [f'{ip} {host}\n' for host, ip in named.items()]
    return ''.join(lines) or None


def _check_ports(
  served: Sequence[Place], peers: Mapping[spec_lib.Task, Place], source: str
) -> None:
  # A server listens on all addresses of its namespace, so that a peer's address
  # there cannot have the same port.
  ports = {place.port: place for place in served}
  for place in peers.values():
    if same := ports.get(place.port):
      raise ValueError(
        f'{source}: {same.name} and {place.name} have the same port, '
        f'{place.port}, which enclosed tasks cannot have. Give each task '
        'another port, also on different hosts.'
      )
