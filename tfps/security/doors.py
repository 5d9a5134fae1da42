"""Doors of an enclosure: the ports that lead into it and out of it."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import ipaddress
import itertools
import socket

from tfps.cluster import spec as spec_lib
from tfps.monitor import dashboard
from tfps.monitor import endpoint

# Addresses of all interfaces, and where they are reached from the same machine.
ALL_INTERFACES = {'0.0.0.0': '127.0.0.1', '::': '::1'}

# TensorFlow's variable that lets its servers bind a port that other sockets of
# this user have with another address.
REUSE_PORT = 'TF_GRPC_REUSE_PORT'

BACKLOG = 512
_IPV6_FREEBIND = 78  # from <linux/in6.h>
# Within, names of hosts stand for loopback addresses from this one on: outside,
# a name may be known only later, and its address may change.
_FIRST_NAMED = ipaddress.IPv4Address('127.77.0.1')
# Variables of ports that a program serves besides its own, by what is served.
PORTS = {'metrics': endpoint.VARIABLE, 'page': dashboard.VARIABLE}


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a port is served, outside and within.

  Attributes:
    name: the task, or what is served.
    host: as in the cluster specification.
    ip: the host's address within, IPv6 without brackets.
    port: the same on both sides.
  """

  name: str
  host: str
  ip: str
  port: int

  @property
  def is_named(self) -> bool:
    """True if the host is a name, whose address outside is looked up."""
    return self.host != 'localhost' and _ip_of(self.host) is None

  def listen(self, *, outside: bool) -> socket.socket:
    """Returns a socket that listens at the place.

    Args:
      outside: whether it is outside of the enclosure, where a name may stand
        for another address than for other hosts: it is on all interfaces.

    Raises:
      ValueError: the port is in use.
    """
    ip = self.ip
    if outside and self.is_named:
      ip = '::' if socket.has_dualstack_ipv6() else '0.0.0.0'
    is_ipv6 = ':' in ip
    listener = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    if is_ipv6:  # all interfaces are those of IPv4, too
      listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ip != '::')
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if not outside:  # the program's server may have the port, on all addresses
      listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if not outside and is_ipv6:  # the kernel gets a new address ready meanwhile
      listener.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
    try:
      listener.bind((ip, self.port))
      listener.listen(BACKLOG)
    except OSError as error:
      listener.close()
      raise ValueError(
        f'{self.name} cannot be served at {address(ip, self.port)}: '
        f'{error.strerror}. End what uses the port, or give another one.'
      ) from error
    return listener


def address(ip: str, port: int) -> str:
  """Returns an address with its port, 'ip:port' or '[ip]:port'."""
  return f'[{ip}]:{port}' if ':' in ip else f'{ip}:{port}'


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
    within = _Within()
    places = {
      task: within.place(str(task), cluster.address(task), cluster.source)
      for task in cluster.tasks()
    }
    own = places.pop(cluster.task, None) if cluster.task else None
    served = [own] if own else []
    for name, variable in PORTS.items():
      if text := env.get(variable, '').strip():
        host, port = endpoint.parse(text, variable)
        served.append(within.place(name, f'{host}:{port}', variable))
    _check_ports(served, own, places, cluster.source)
    return cls(tuple(served), places)

  def env(self) -> dict[str, str]:
    """Returns variables that the program needs to share ports with doors."""
    own = {place.port for place in self.served}
    shares = any(place.port in own for place in self.peers.values())
    return {REUSE_PORT: 'true'} if shares else {}

  def named(self) -> list[Place]:
    """Returns the places whose hosts are names."""
    return [p for p in (*self.served, *self.peers.values()) if p.is_named]

  def hosts(self) -> str | None:
    """Returns lines for /etc/hosts; None if no place has a name."""
    named = {place.host: place.ip for place in self.named()}
    lines = [f'{ip} {host}\n' for host, ip in named.items()]
    return ''.join(lines) or None


class _Within:
  """Addresses as a program in an enclosure sees them."""

  def __init__(self) -> None:
    self._ips = {'localhost': '127.0.0.1'}
    self._unused = (_FIRST_NAMED + number for number in itertools.count())

  def place(self, name: str, address: str, source: str) -> Place:
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
    if not int(port):
      raise ValueError(
        f'{where}, and nothing leads to a port that is not known before. Give '
        'each task a port.'
      )
    return Place(name, host, self._ip(host), int(port))

  def _ip(self, host: str) -> str:
    if host not in self._ips:
      self._ips[host] = _ip_of(host) or str(next(self._unused))
    return self._ips[host]


def _ip_of(host: str) -> str | None:
  """Returns the address that a host is given by; None if it is a name."""
  try:
    return str(ipaddress.ip_address(host.removeprefix('[').removesuffix(']')))
  except ValueError:
    return None


def _check_ports(
  served: Sequence[Place],
  own: Place | None,
  peers: Mapping[spec_lib.Task, Place],
  source: str,
) -> None:
  # Within, all are on one machine. The server of the task shares its port with
  # peers at other addresses; servers of metrics and of the page cannot.
  ports = {place.port: place for place in served}
  for place in peers.values():
    same = ports.get(place.port)
    if same is not None and (same is not own or same.ip == place.ip):
      raise ValueError(
        f'{source}: {same.name} and {place.name} have the same port, '
        f'{place.port}, at {same.ip} and {place.ip}, which an enclosure cannot '
        f'tell apart. Give {same.name} another port.'
      )
