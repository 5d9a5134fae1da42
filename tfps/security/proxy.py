"""Proxy that adds mutual TLS to connections, by haproxy.

Each door of it is a listening socket, whose connections it passes on: those
that come in are accepted with a certificate of the job only; those that go out
are made only if the peer proves its name.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading

from tfps._utils import processes
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.security import certificates
from tfps.security import config

_PROGRAM = 'haproxy'
# The first of these that both sides have; it is the one that costs least.
_SUITES = 'TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384'
_TLS = f'ssl-min-ver TLSv1.3 ciphersuites {_SUITES}'
# A session that is resumed proves nothing anew: its certificate may have
# expired, or be of a CA that is no longer accepted. So none is.
# Who calls a program that has no server yet is refused at once: a connection
# that is kept meanwhile looks like one to a frozen program.
# A connection may be silent for as long as training is; `timeout` has 24 days
# at most. A peer has 10 seconds to prove who it is.
_HEAD = """\
global
  nbthread {threads}
  tune.bufsize 262144
  log stderr format raw daemon err
  stats socket fd@{control} level admin
  stats timeout 24d
  tune.ssl.cachesize 0
defaults
  mode tcp
  log global
  option log-separate-errors
  error-log-format "{refused}"
  retries 0
  timeout connect 5s
  timeout client 10s
  timeout server 10s
  timeout tunnel 24d
"""
_REFUSED = (
  'tfps enclose: %b refused a connection from %ci:%cp: %[ssl_fc_err_str]'
)
_MAX_THREADS = 4
_PROMPT = b'\n> '  # that it waits for a command
_SERVER = 'program'  # haproxy's name of a door's target


@dataclasses.dataclass(frozen=True)
class Door:
  """One listening socket of a proxy.

  Attributes:
    name: for messages of the proxy, such as 'ps:0'.
    listener: a socket's number, or the path of a Unix socket to make.
    target: the 'host:port', or 'unix@' and the path of a socket, to which
      connections are passed on; empty if it is not known yet, and they are
      refused.
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


class Proxy:
  """A running proxy, which ends with this process.

  Args:
    process: the process of haproxy.
    control: connected to it, for its commands.
    credentials: its name of the file with certificate and key.
  """

  def __init__(
    self, process: processes.Leader, control: socket.socket, credentials: str
  ) -> None:
    self._process = process
    self._control = control
    self._credentials = credentials
    self._has_prompted = False
    self._lock = threading.Lock()  # of commands

  @property
  def pid(self) -> int:
    """The process id of haproxy."""
    return self._process.pid

  def wait(self) -> None:
    """Waits until connections are taken.

    Raises:
      OSError: it has ended, or does not answer.
    """
    with self._lock:
      if not self._has_prompted:
        self._answer()
        self._has_prompted = True

  def lead(self, name: str, ip: str, port: int) -> None:
    """Passes connections to come on to another address.

    Args:
      name: of the door.
      ip: the address, IPv6 without brackets.
      port: its port.

    Raises:
      ValueError: haproxy does not take it.
      OSError: it does not answer.
    """
    self.wait()
    server = f'set server {name}/{_SERVER}'
    with self._lock:
      self._command(f'{server} addr {ip} port {port}'.encode(), 'stats socket')
      self._command(f'{server} state ready'.encode(), '')

  def renew(self, security: config.Security) -> None:
    """Shows and accepts other credentials in connections to come.

    Args:
      security: the credentials, of files with the same names.

    Raises:
      ValueError: haproxy does not take them.
      OSError: it does not answer.
    """
    self.wait()
    given = {
      'cert': (self._credentials, security.pem()),
      'ca-file': (security.ca, pathlib.Path(security.ca).read_bytes()),
    }
    commands: list[tuple[bytes, str]] = []
    for kind, (name, pem) in given.items():
      # An empty line ends what is given.
      text = b'\n'.join(line for line in pem.splitlines() if line.strip())
      command = f'set ssl {kind} {_escaped(name)} <<\n'
      commands.append((command.encode() + text + b'\n', 'transaction'))
    for kind, (name, _) in given.items():
      command = f'commit ssl {kind} {_escaped(name)}'
      commands.append((command.encode(), 'success'))
    with self._lock:
      for each, wanted in commands:
        self._command(each, wanted)

  def kill(self) -> None:
    """Kills the process, and closes all of its connections."""
    self._control.close()
    processes.kill(self._process)

  def _command(self, command: bytes, wanted: str) -> None:
    self._control.sendall(command + b'\n')
    answer = self._answer()
    if wanted not in answer.lower():
      raise ValueError(f'haproxy answers {answer!r} to {command[:40]!r}.')

  def _answer(self) -> str:
    """Returns what haproxy says until it waits for a command."""
    answer = b''
    while not answer.endswith(_PROMPT):
      part = self._control.recv(1 << 16)
      if not part:
        raise ConnectionError('haproxy has closed the connection')
      answer += part
    return answer.removesuffix(_PROMPT).decode()


def start(
  doors: Sequence[Door],
  security: config.Security,
  *,
  wrap: Callable[[list[str]], list[str]] = list,
) -> Proxy:
  """Starts a proxy, which ends with this process.

  Args:
    doors: at least one.
    security: the credentials it shows and accepts.
    wrap: returns the command that runs another one where the proxy belongs.

  Returns:
    The proxy, which writes what it refuses to standard error.
  """
  # Files without a name, so that no key is left on a disk.
  credentials = _in_memory(security.pem())
  listener, control = _connected()
  name = _path(credentials)
  text = configuration(doors, security, name, listener.fileno())
  settings = _in_memory(text.encode())
  sockets = [d.listener for d in doors if isinstance(d.listener, int)]
  try:
    process = processes.spawn(
      wrap([_installed() or _PROGRAM, '-db', '-f', _path(settings)]),
      env={},
      stdout=subprocess.DEVNULL,
      stderr=2,
      pass_fds=[credentials, settings, listener.fileno(), *sockets],
    )
  finally:
    listener.close()
    os.close(credentials)
    os.close(settings)
  return Proxy(process, control, name)


def configuration(
  doors: Sequence[Door],
  security: config.Security,
  credentials: str,
  control: int,
) -> str:
  """Returns haproxy's configuration.

  Args:
    doors: the doors.
    security: names the CA.
    credentials: the file with certificate and key.
    control: number of the socket on which it listens for commands.
  """
  # The other half of the cores is the program's.
  num_cores = len(os.sched_getaffinity(0))
  threads = max(1, min(_MAX_THREADS, num_cores // 2))
  tls = (
    f'ssl crt {_quoted(credentials)} ca-file {_quoted(security.ca)} '
    f'verify required {_TLS}'
  )
  parts = [
    _HEAD.format(threads=threads, refused=_REFUSED, control=control),
  ]
  for door in doors:
    incoming = '' if door.peer else f' {tls} no-tls-tickets alpn h2,http/1.1'
    outgoing = ''
    if door.peer:
      name = certificates.dns_name(door.peer)
      outgoing = f' {tls} no-ssl-reuse verifyhost {name}'
    parts.append(
      f'listen {door.name}\n'
      f'  bind {_listener(door)}{incoming}\n'
      f'  server {_SERVER} {_target(door)}{outgoing}\n'
    )
  return ''.join(parts)


def _target(door: Door) -> str:
  # haproxy wants an address of each server, of disabled ones, too.
  return _quoted(door.target) if door.target else '127.0.0.1:1 disabled'


def _listener(door: Door) -> str:
  if isinstance(door.listener, int):
    return f'fd@{door.listener}'
  return f'{_quoted(f"unix@{door.listener}")} mode 600'


def _connected() -> tuple[socket.socket, socket.socket]:
  """Returns a socket that listens, and the only one that is connected to it.

  No name of them is left, by which others could connect.
  """
  listener, control = (socket.socket(socket.AF_UNIX) for _ in range(2))
  with tempfile.TemporaryDirectory(prefix='tfps-control-') as folder:
    path = f'{folder}/control'
    listener.bind(path)
    listener.listen(1)
    control.connect(path)
  control.settimeout(timeouts.current().command_secs)
  control.sendall(b'prompt\n')  # without which it closes after a command
  return listener, control


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


def _escaped(path: object) -> str:
  """Returns a path as a word of a command."""
  return str(path).replace('\\', r'\\').replace(' ', r'\ ')


def _installed() -> str | None:
  """Returns the program's path, if there is one."""
  path = os.environ.get('PATH', os.defpath)
  # Where Debian has it; not all users have that in their path.
  return shutil.which(_PROGRAM, path=f'{path}:/usr/sbin:/usr/local/sbin')
