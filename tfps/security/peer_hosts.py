"""Addresses of the hosts that a cluster names, as long as a program runs.

A host may have no address yet when a task of another one starts, and a task
that is restarted may have another one, as pods of Kubernetes do.
"""

from collections.abc import Sequence
import contextlib
import socket
import sys
import time

from tfps._utils import threads
from tfps._utils import timeouts
from tfps.security import doors as doors_lib
from tfps.security import proxy as proxy_lib

_AT_ONCE = 16  # lookups, each of which a name service may keep for seconds


class PeerHosts:
  """Looks up where doors that lead out have to lead.

  Args:
    plan: the doors.
  """

  def __init__(self, plan: doors_lib.Plan) -> None:
    self._places = list(plan.peers.values())
    named = {place.host for place in self._places if place.is_named}
    self._ips = _found(sorted(named))
    self._next_look = time.monotonic() + timeouts.current().hosts_every_secs
    if unknown := [host for host, ip in self._ips.items() if not ip]:
      _say(
        f'the name service does not know {", ".join(unknown)} yet. It is asked '
        'again until it does.'
      )

  @property
  def are_named(self) -> bool:
    """True if any host is a name, so that there is something to follow."""
    return bool(self._ips)

  def target(self, place: doors_lib.Place) -> str:
    """Returns the 'ip:port' of a place outside; empty if it is not known.

    Args:
      place: one of the plan's peers.
    """
    ip = self._ips[place.host] if place.is_named else place.ip
    return doors_lib.address(ip, place.port) if ip else ''

  def follow(self, proxy: proxy_lib.Proxy) -> None:
    """Looks names up, and leads doors to addresses that have changed.

    Names without an address are looked up at each call, others every
    `Timeouts.hosts_every_secs`. An address is used until there is another one.

    Args:
      proxy: has the doors.
    """
    now = time.monotonic()
    is_due = now >= self._next_look
    if is_due:
      self._next_look = now + timeouts.current().hosts_every_secs
    wanted = [host for host, ip in self._ips.items() if is_due or not ip]
    for host, ip in _found(wanted).items():
      if not ip or ip == self._ips[host]:
        continue
      try:
        for place in self._places:
          if place.host == host:
            proxy.lead(place.name, ip, place.port)
      except (ValueError, OSError) as error:
        _say(f'{host} is at {ip} now, which is tried again: {error}')
        continue
      self._ips[host] = ip
      _say(f'{host} is at {ip} now.')


def _found(hosts: Sequence[str]) -> dict[str, str]:
  """Returns the addresses of hosts; empty for one that has none now."""
  ips = threads.map_all('tfps-lookup', _address, hosts, at_once=_AT_ONCE)
  return dict(zip(hosts, ips, strict=True))


def _address(host: str) -> str:
  for family in (socket.AF_INET, socket.AF_INET6):
    with contextlib.suppress(OSError):
      return str(socket.getaddrinfo(host, None, family)[0][4][0])
  return ''


def _say(said: str) -> None:
  print(f'tfps enclose: {said}', file=sys.stderr, flush=True)
