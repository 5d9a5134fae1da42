"""Doors of a program that has no network namespace, by a preloaded library.

Where namespaces are not allowed, a library (`doors.c`) stands between the
program and its C library: what would listen on a TCP port listens on a Unix
socket in a folder that only this user may open, and what would connect to a
peer connects to such a socket, behind which a proxy is.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import ipaddress
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys

from tfps._utils import timeouts
from tfps.security import doors as doors_lib
from tfps.security import forms

_SOURCE = pathlib.Path(__file__).with_name('doors.c')
_COMPILERS = ('cc', 'gcc', 'clang')
_FLAGS = ('-O2', '-shared', '-fPIC')
_LIBRARIES = ('-ldl', '-lpthread')
_MAX_PATH = 107  # of a Unix socket's address
_LOADED = 'LD_PRELOAD'
# Listens at a port of its own, and asks for the door in its place.
_PROBE = """
import os, socket
server = socket.create_server(('127.0.0.1', 0))
door = f'{os.environ["TFPS_DOORS"]}/in-{server.getsockname()[1]}'
os.unlink(door)
"""


class Preloaded(forms.Form):
  """Form of an enclosure whose program has a library that makes its doors.

  Args:
    plan: the doors.
    folder: a folder that only this user may open, for the library and sockets.

  Raises:
    ValueError: this machine has no compiler, or does not load the library.
  """

  def __init__(self, plan: doors_lib.Plan, folder: str) -> None:
    self._plan = plan
    self._folder = folder
    self._library = f'{folder}/doors.so'
    path = f'{folder}/out-{1 << 16}'
    if len(os.fsencode(path)) > _MAX_PATH:
      raise ValueError(
        f'{folder} is too long a name for a folder of Unix sockets. Set TMPDIR '
        'to a shorter one.'
      )
    _compile(self._library)
    self._variables = _variables(plan, folder)
    _check(self.env({}))

  def env(self, env: Mapping[str, str]) -> dict[str, str]:
    libraries = [self._library, *env.get(_LOADED, '').split()]
    return {**self._variables, _LOADED: ' '.join(libraries)}

  def enter(self) -> list[socket.socket]:
    listeners = []
    for number in range(len(self._plan.peers)):
      listener = socket.socket(socket.AF_UNIX)
      path = f'{self._folder}/out-{number}'
      listener.bind(path)
      os.chmod(path, 0o600)
      listener.listen(doors_lib.BACKLOG)
      listeners.append(listener)
    return listeners

  def target(self, place: doors_lib.Place) -> str:
    return f'unix@{self._folder}/in-{place.port}'


def _variables(plan: doors_lib.Plan, folder: str) -> dict[str, str]:
  """Returns the library's variables, for which it looks all hosts up."""
  out = [
    f'{ip}-{place.port}:{number}'
    for number, place in enumerate(plan.peers.values())
    for ip in (place.ip, *_addresses(place.host))
  ]
  hosts = {place.host for place in plan.served}
  own = {ip for host in hosts for ip in _addresses(host)}
  names = [f'{p.host}-{p.port}:{p.ip}' for p in plan.named()]
  return {
    'TFPS_DOORS': folder,
    'TFPS_DOORS_OUT': _entries(out),
    'TFPS_DOORS_IN': _entries(place.port for place in plan.served),
    'TFPS_DOORS_HERE': _entries(sorted(own)),
    'TFPS_DOORS_NAMES': _entries(names),
    # By the C library; grpcio would ask name services by itself.
    'GRPC_DNS_RESOLVER': 'native',
  }


def _entries(items: Iterable[object]) -> str:
  return ''.join(f'{item},' for item in items)


def _addresses(host: str) -> list[str]:
  """Returns the addresses that a host now has, as in `doors.c`."""
  found: dict[str, None] = {}
  try:
    infos = socket.getaddrinfo(host.strip('[]'), None, type=socket.SOCK_STREAM)
  except OSError:
    return []
  for *_, address in infos:
    ip = ipaddress.ip_address(str(address[0]).partition('%')[0])
    mapped = getattr(ip, 'ipv4_mapped', None)
    if ip == ipaddress.IPv6Address('::1'):
      mapped = ipaddress.IPv4Address('127.0.0.1')
    found[str(mapped or ip)] = None
  return list(found)


def _compile(library: str) -> None:
  """Compiles the library.

  Raises:
    ValueError: there is no compiler, or it fails.
  """
  given = shlex.split(os.environ.get('CC', ''))
  found = given or list(filter(None, map(shutil.which, _COMPILERS)))[:1]
  if not found:
    raise ValueError(
      f'there is no C compiler ({", ".join(_COMPILERS)}), which makes a '
      'library for it. Install one, or set CC.'
    )
  command = [*found, *_FLAGS, '-o', library, str(_SOURCE), *_LIBRARIES]
  try:
    done = subprocess.run(
      command,
      capture_output=True,
      text=True,
      timeout=timeouts.current().start_secs,
    )
  except (OSError, subprocess.TimeoutExpired) as error:
    raise ValueError(f'{shlex.join(command)} fails: {error}.') from error
  if done.returncode:
    raise ValueError(f'{shlex.join(command)} fails: {done.stderr.strip()}')


def _check(env: Mapping[str, str]) -> None:
  """Checks that this machine's programs load the library.

  Raises:
    ValueError: they do not.
  """
  done = subprocess.run(
    [sys.executable, '-I', '-S', '-c', _PROBE],
    env={**os.environ, **env},
    capture_output=True,
    text=True,
    timeout=timeouts.current().start_secs,
  )
  if done.returncode:
    raise ValueError(
      f'{sys.executable} does not work with {_LOADED}={env[_LOADED]}: '
      f'{done.stderr.strip()} Set TMPDIR to a folder from which programs may '
      'be run.'
    )
