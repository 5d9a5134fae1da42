"""Where other hosts find this one."""

import ipaddress
import socket


def towards(address: str) -> str:
  """The host by which this machine is known on the way to an address.

  Args:
    address: 'host:port' of a task that is to reach this process.

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
