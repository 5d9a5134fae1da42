"""Proxy that adds mutual TLS to connections, by haproxy.

Each door of it is a listening socket, whose connections it passes on: those
that come in are accepted with a certificate of the job only; those that go out
are made only if the peer proves its name.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import os
import shutil
import subprocess

from tfps._utils import processes
from tfps.cluster import spec as spec_lib
from tfps.security import certificates
from tfps.security import config

_PROGRAM = 'haproxy'
_TLS = 'ssl-min-ver TLSv1.3'
# A connection may be silent for as long as training is; `timeout` has 24 days
# at most. A peer has 10 seconds to prove who it is.
_HEAD = """\
global
  nbthread {threads}
  tune.bufsize 262144
  log stderr format raw daemon err
defaults
  mode tcp
  log global
  option log-separate-errors
  error-log-format "{refused}"
  timeout connect 5s
  timeout client 10s
  timeout server 10s
  timeout tunnel 24d
"""
_REFUSED = (
  'tfps enclose: %b refused a connection from %ci:%cp: %[ssl_fc_err_str]'
)
_MAX_THREADS = 4


@dataclasses.dataclass(frozen=True)
class Door:
  """One listening socket of a proxy.

  Attributes:
    name: for messages of the proxy, such as 'ps:0'.
    listener: a socket's number, or the path of a Unix socket to make.
    target: the 'host:port' to which connections are passed on.
    peer: the task that has to answer there by TLS; None if connections come in
      by TLS and go to the program.
  """

  name: str
  listener: int | str
  target: str
  peer: spec_lib.Task | None = None


def check_installed() -> None:
  """Checks that the proxy's program is installed.

  Raises:
    ValueError: it is not.
  """
  if _installed() is None:
    raise ValueError(
      'haproxy is not installed, which adds TLS to connections. Install '
      "Debian's or Ubuntu's package haproxy: apt-get install haproxy"
    )


def start(
  doors: Sequence[Door],
  security: config.Security,
  *,
  wrap: Callable[[list[str]], list[str]] = list,
) -> processes.Leader:
  """Starts a proxy, which ends with this process.

  Args:
    doors: at least one.
    security: the credentials it shows and accepts.
    wrap: returns the command that runs another one where the proxy belongs.

  Returns:
    The proxy's process, which writes what it refuses to standard error.
  """
  # Files without a name, so that no key is left on a disk.
  credentials = _in_memory(security.pem())
  text = configuration(doors, security, _path(credentials))
  settings = _in_memory(text.encode())
  sockets = [d.listener for d in doors if isinstance(d.listener, int)]
  try:
    return processes.spawn(
      wrap([_installed() or _PROGRAM, '-db', '-f', _path(settings)]),
      env={},
      stdout=subprocess.DEVNULL,
      stderr=2,
      pass_fds=[credentials, settings, *sockets],
    )
  finally:
    os.close(credentials)
    os.close(settings)


def configuration(
  doors: Sequence[Door],
  security: config.Security,
  credentials: str,
) -> str:
  """Returns haproxy's configuration.

  Args:
    doors: the doors.
    security: names the CA.
    credentials: the file with certificate and key.
  """
  threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
  tls = (
    f'ssl crt {_quoted(credentials)} ca-file {_quoted(security.ca)} '
    f'verify required {_TLS}'
  )
  parts = [_HEAD.format(threads=threads, refused=_REFUSED)]
  for door in doors:
    incoming = '' if door.peer else f' {tls} alpn h2,http/1.1'
    outgoing = ''
    if door.peer:
      outgoing = f' {tls} verifyhost {certificates.dns_name(door.peer)}'
    parts.append(
      f'listen {door.name}\n'
      f'  bind {_listener(door)}{incoming}\n'
      f'  server program {door.target}{outgoing}\n'
    )
  return ''.join(parts)


def _listener(door: Door) -> str:
  if isinstance(door.listener, int):
    return f'fd@{door.listener}'
  return f'{_quoted(f"unix@{door.listener}")} mode 600'


def _in_memory(data: bytes) -> int:
  number = os.memfd_create('tfps')
  os.write(number, data)
  return number


def _path(number: int) -> str:
  return f'/proc/self/fd/{number}'


def _quoted(path: object) -> str:
  """Returns a path as a word, within which haproxy replaces nothing."""
  text = str(path)
  return "'" + text.replace("'", "'\\''") + "'"


def _installed() -> str | None:
  """Returns the program's path, if there is one."""
  path = os.environ.get('PATH', os.defpath)
  # Where Debian has it; not all users have that in their path.
  return shutil.which(_PROGRAM, path=f'{path}:/usr/sbin:/usr/local/sbin')
