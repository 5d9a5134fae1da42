"""Gate that keeps clients from a server until it has its first context.

TensorFlow's server listens from the moment when it is made. A client that comes
while the first context is being opened could crash it; see
`_compat.eager_contexts`. Linux gives a connection to the socket that is bound
to its very address, rather than to one that is bound to all. So other sockets
take the connections of clients meanwhile, which try again once these are reset,
and a loopback address that no client knows leads to the server.
"""

from collections.abc import Callable
import contextlib
import ipaddress
import os
import socket
import threading
from typing import TypeVar

from tfps.security import doors

_Server = TypeVar('_Server')

_BACK_DOOR = '127.84.70.80'
_LOOPBACK = ('127.0.0.1', '::1')
_ELSEWHERE = ('192.0.2.1', 9)  # for documentation; nothing is sent
_CONNECT_SECS = 5.0

# Held while TensorFlow's variable is set, which others take for an enclosure's.
_lock = threading.Lock()


class Gate:
  """Keeps clients from the port of a server; a context manager.

  It stays open, and clients are not kept away, in an enclosure, for a port that
  is still to be chosen, and where the system does not allow it.

  Args:
    address: 'host:port' of the server.
  """

  def __init__(self, address: str) -> None:
    self._sockets = contextlib.ExitStack()
    host, _, port = address.rpartition(':')
    self._host, self._port = host.strip('[]'), int(port)
    self._is_closed = False

  def __enter__(self) -> 'Gate':
    with _lock:
      is_enclosed = doors.REUSE_PORT in os.environ
    if self._port and not is_enclosed:
      for ip in {*_LOOPBACK, *_own_ips(self._host)}:
        with contextlib.suppress(OSError):  # no address of this host
          self._sockets.enter_context(_listening(ip, self._port))
          self._is_closed = True
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._sockets.close()

  def behind(self, make: Callable[[], _Server]) -> _Server:
    """Makes a server of TensorFlow that listens behind the gate.

    Args:
      make: makes it.
    """
    if not self._is_closed:
      return make()
    with _lock:
      os.environ[doors.REUSE_PORT] = '1'
      try:
        return make()
      finally:
        del os.environ[doors.REUSE_PORT]

  def back_door(self, address: str) -> str:
    """Returns an address at which this process reaches the server.

    If there is no other than that of clients, the gate is opened.

    Args:
      address: 'host:port' of the server, whose port may have been chosen.
    """
    if self._is_closed:
      back_door = _BACK_DOOR, self._port
      with contextlib.suppress(OSError):
        socket.create_connection(back_door, _CONNECT_SECS).close()
        return f'{_BACK_DOOR}:{self._port}'
    self._sockets.close()
    return address


def _listening(ip: str, port: int) -> socket.socket:
  family = socket.AF_INET6 if ':' in ip else socket.AF_INET
  listener = socket.socket(family, socket.SOCK_STREAM)
  try:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((ip, port))
    listener.listen(doors.BACKLOG)
  except OSError:
    listener.close()
    raise
  return listener


def _own_ips(host: str) -> set[str]:
  """Returns the addresses by which others may reach this host.

  Names are not looked up, which may take long.

  Args:
    host: in the cluster specification.
  """
  found = set()
  with contextlib.suppress(ValueError):  # a name
    found.add(str(ipaddress.ip_address(host)))
  with (
    contextlib.suppress(OSError),  # no network but the loopback
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward,
  ):
    outward.connect(_ELSEWHERE)
    found.add(outward.getsockname()[0])
  return found - {'0.0.0.0', '::'}
