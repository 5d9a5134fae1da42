"""Starts Python programs by forking a process that has imported TensorFlow."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any
from typing import IO

from tfps import errors
from tfps._utils import processes
from tfps.launch import fork_server

# Variables that the interpreter and the libraries read when they are loaded.
_HEEDED = ('PYTHON', 'LD_', 'TF_', 'KERAS', 'CUDA', 'XLA', 'OMP_', 'MKL_')
# Variables that are read later; to connect sets all but the first.
_NOT_HEEDED = (
  'TF_CONFIG',
  'TF_FORCE_GPU_ALLOW_GROWTH',
  'TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE',
  'TF_GRPC_DEFAULT_OPTIONS',
  'TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY',
)
_LAST_BYTES = 2000
_SERVERS: list['_Server'] = []
_LOCK = threading.Lock()  # for the list of servers


class Forked:
  """A running program with a part of the interface of `subprocess.Popen`.

  Args:
    status: file descriptor to which the fork server writes, see `fork_server`.
    timeout_secs: how long to wait for the process id.

  Attributes:
    pid: the id of the process and of its group.

  Raises:
    errors.DeadlineError: no process was forked in time.
    ConnectionError: the fork server has ended.
  """

  def __init__(self, status: int, timeout_secs: float) -> None:
    self._status = os.fdopen(status, 'rb', buffering=0)
    self._code: int | None = None
    pid = self._next(timeout_secs)
    if pid is None:
      raise errors.DeadlineError(
        f'No process was forked within {timeout_secs:g} seconds. Check the '
        'load of this machine, or leave out preload.'
      )
    self.pid = pid

  def poll(self) -> int | None:
    """Returns the exit status, minus the signal, or None while it runs."""
    if self._code is None:
      try:
        self._code = self._next(0)
      except ConnectionError:  # its children die with the server
        self._code = -signal.SIGKILL
    return self._code

  def wait(self, timeout: float | None = None) -> int:
    """Waits until the process ends; returns its status as `poll` does.

    Args:
      timeout: seconds to wait; None waits forever.

    Raises:
      subprocess.TimeoutExpired: the process still runs.
    """
    if self._code is None:
      select.select([self._status], [], [], timeout)
    code = self.poll()
    if code is None:
      assert timeout is not None
      raise subprocess.TimeoutExpired(str(self.pid), timeout)
    return code

  def send_signal(self, number: int) -> None:
    """Sends a signal unless the process has ended."""
    if self.poll() is None:
      os.kill(self.pid, number)

  def terminate(self) -> None:
    """Sends SIGTERM."""
    self.send_signal(signal.SIGTERM)

  def _next(self, timeout_secs: float) -> int | None:
    """Returns the next number from the server; None if none comes in time."""
    if not select.select([self._status], [], [], timeout_secs)[0]:
      return None
    data = self._status.read(fork_server.NUMBER.size)
    if not data:
      raise ConnectionError('The fork server has ended.')
    return fork_server.NUMBER.unpack(data)[0]


def can_start(command: Sequence[str]) -> bool:
  """Returns whether a command runs a file or module with this Python."""
  return (
    len(command) > 1
    and command[0] == sys.executable
    and (command[1] == '-m' or command[1].endswith('.py'))
  )


def check_preload(modules: Sequence[str]) -> tuple[str, ...]:
  """Returns the modules after checking that they exist, without importing.

  Raises:
    ValueError: a module does not exist; names it.
  """
  for module in modules:
    if not _exists(module):
      raise ValueError(f'preload: there is no module {module!r}.')
  return tuple(modules)


def spawn(
  command: Sequence[str],
  *,
  env: Mapping[str, str],
  stdout: IO[bytes],
  preload: Sequence[str] = (),
  timeout_secs: float,
) -> Forked:
  """Starts a command for which `can_start` is true, as `processes.spawn` does.

  The first call takes as long as importing TensorFlow.

  Args:
    command: program and arguments.
    env: the child's whole environment.
    stdout: receives its output and its errors.
    preload: modules to import before forking, besides `tensorflow`.
    timeout_secs: how long to wait for its process id.

  Returns:
    The running process.

  Raises:
    ImportError: the fork server ended, for example because a module cannot be
      imported; quotes its output.
    errors.DeadlineError: the process was not forked in time.
  """
  modules = frozenset(preload) - {'tensorflow'}
  with _LOCK:
    server = _server(modules, _heeded(env))
  request = {'argv': command[1:], 'env': dict(env), 'cwd': os.getcwd()}
  try:
    return Forked(_send(server, request, stdout), timeout_secs)
  except ConnectionError as error:
    raise ImportError(
      f'The process that imports {", ".join(preload) or "tensorflow"} has '
      f'ended. Its last output:\n{server.last_output()}'
    ) from error


@dataclasses.dataclass(frozen=True)
class _Server:
  """A running fork server, which ends when its connection is closed."""

  modules: frozenset[str]
  env: Mapping[str, str]
  process: subprocess.Popen[bytes]
  connection: socket.socket
  log: IO[bytes]

  def last_output(self) -> str:
    """Returns the end of what the process has written."""
    self.log.seek(0)
    return self.log.read()[-_LAST_BYTES:].decode(errors='replace')


def _exists(module: str) -> bool:
  name, *inner = module.split('.')
  spec = importlib.util.find_spec(name)
  for part in inner:
    if spec is None or spec.submodule_search_locations is None:
      return False
    name = f'{name}.{part}'
    spec = importlib.machinery.PathFinder.find_spec(
      name, spec.submodule_search_locations
    )
  return spec is not None


def _send(server: _Server, request: Any, stdout: IO[bytes]) -> int:
  """Requests a process; returns the descriptor to read its status from."""
  status, at_server = os.pipe()
  try:
    fds = [stdout.fileno(), at_server]
    socket.send_fds(server.connection, [json.dumps(request).encode()], fds)
  except OSError:
    os.close(status)
    raise
  finally:
    os.close(at_server)
  return status


def _heeded(env: Mapping[str, str]) -> dict[str, str]:
  return {
    name: value
    for name, value in env.items()
    if name.startswith(_HEEDED) and name not in _NOT_HEEDED
  }


def _server(modules: frozenset[str], env: Mapping[str, str]) -> _Server:
  """Returns a server with modules that heeds an environment.

  It may have Keras, too; other modules might start what a fork does not keep.
  """
  for server in _SERVERS:
    has_keras = server.modules == modules | {'keras'}
    is_usable = has_keras and server.process.poll() is None
    if server.env == env and (is_usable or modules == server.modules):
      return server
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  others = {n: v for n, v in os.environ.items() if n not in _heeded(os.environ)}
  log = tempfile.TemporaryFile()  # noqa: SIM115
  with theirs:
    process = processes.spawn(
      [sys.executable, '-m', fork_server.__name__]
      + [str(theirs.fileno()), *sorted(modules)],
      env={**others, **env},
      stdout=log,
      pass_fds=[theirs.fileno()],
    )
  server = _Server(modules, env, process, ours, log)
  _SERVERS.append(server)
  return server
