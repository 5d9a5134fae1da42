"""Proxy that adds mutual TLS to connections, by haproxy.

Each door of it is a listening socket, whose connections it passes on: those
that come in are accepted with a certificate of the job only; those that go out
are made only if the peer proves its name.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import shutil
import subprocess
import threading

from tfps._utils import processes
from tfps.cluster import spec as spec_lib
from tfps.security import certificates
from tfps.security import config
from tfps.security import control as control_lib

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
# haproxy's issue 3165: a certificate that is given after a CA leaves this with
# references to what is freed, which the next CA follows.
_NO_MORE_CAS = (
  'haproxy, which has been given another CA and then another certificate, may '
  'crash if it is given yet another CA. Restart the task, which accepts the CA '
  'of before.'
)
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
    control: for its commands.
    credentials: its name of the file with certificate and key.
    given: contents of the files that it has read, by their kind.
  """

  def __init__(
    self,
    process: processes.Leader,
    control: control_lib.Control,
    credentials: str,
    given: Mapping[str, bytes],
  ) -> None:
    self._process = process
    self._control = control
    self._credentials = credentials
    self._given = dict(given)
    # What it has been given; see `_NO_MORE_CAS`.
    self._has_other_ca = False
    self._has_cert_after_ca = False
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
      self._control.connect()

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
    server = f'set server {name}/{_SERVER}'
    with self._lock:
      self._control.send(
        f'{server} addr {ip} port {port}'.encode(), 'stats socket'
      )
      self._control.send(f'{server} state ready'.encode(), '')

  def renew(self, security: config.Security) -> None:
    """Shows and accepts other credentials in connections to come.

    Args:
      security: the credentials, of files with the same names.

    Raises:
      ValueError: haproxy does not take them, or would crash.
      OSError: it does not answer.
    """
    names = {'cert': self._credentials, 'ca-file': str(security.ca)}
    with self._lock:
      files = _files(security)
      new = {k: pem for k, pem in files.items() if pem != self._given.get(k)}
      is_refused = 'ca-file' in new and self._has_cert_after_ca
      if is_refused:
        del new['ca-file']
      for kind, pem in new.items():
        # An empty line ends what is given.
        text = b'\n'.join(line for line in pem.splitlines() if line.strip())
        command = f'set ssl {kind} {_escaped(names[kind])} <<\n'.encode()
        self._control.send(command + text + b'\n', 'transaction')
      # A CA that comes last may be followed by another one.
      order = ('ca-file', 'cert') if self._has_other_ca else ('cert', 'ca-file')
      for kind in [kind for kind in order if kind in new]:
        self._commit(kind, names[kind])
        self._given[kind] = new[kind]
      if is_refused:
        raise ValueError(_NO_MORE_CAS)

  def _commit(self, kind: str, name: str) -> None:
    self._given.pop(kind, None)  # is not known if there is no answer
    if kind == 'ca-file':
      self._has_other_ca = True
    elif self._has_other_ca:
      self._has_cert_after_ca = True
    command = f'commit ssl {kind} {_escaped(name)}'
    self._control.send(command.encode(), 'success')

  def kill(self) -> None:
    """Kills the process, and closes all of its connections."""
    self._control.close()
    processes.kill(self._process)


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
  given = _files(security)
  credentials = _in_memory(given['cert'])
  control = control_lib.Control()
  name = _path(credentials)
  text = configuration(doors, security, name, control.listener.fileno())
  settings = _in_memory(text.encode())
  sockets = [d.listener for d in doors if isinstance(d.listener, int)]
  try:
    process = processes.spawn(
      wrap([_installed() or _PROGRAM, '-db', '-f', _path(settings)]),
      env={},
      stdout=subprocess.DEVNULL,
      stderr=2,
      pass_fds=[credentials, settings, control.listener.fileno(), *sockets],
    )
  finally:
    control.listener.close()
    os.close(credentials)
    os.close(settings)
  return Proxy(process, control, name, given)


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


def _files(security: config.Security) -> dict[str, bytes]:
  """Returns contents of files, by what haproxy calls their kind."""
  ca = pathlib.Path(security.ca).read_bytes()
  return {'cert': security.pem(), 'ca-file': ca}


def _target(door: Door) -> str:
  # haproxy wants an address of each server, of disabled ones, too.
  return _quoted(door.target) if door.target else '127.0.0.1:1 disabled'


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


def _escaped(path: object) -> str:
  """Returns a path as a word of a command."""
  return str(path).replace('\\', r'\\').replace(' ', r'\ ')


def _installed() -> str | None:
  """Returns the program's path, if there is one."""
  path = os.environ.get('PATH', os.defpath)
  # Where Debian has it; not all users have that in their path.
  return shutil.which(_PROGRAM, path=f'{path}:/usr/sbin:/usr/local/sbin')
