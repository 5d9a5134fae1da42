"""Python programs that start with TensorFlow in place; see `fork_server`."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
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

# What the interpreter and the libraries heed when they are loaded.
_HEEDED = ('PYTHON', 'LD_', 'TF_', 'KERAS', 'CUDA', 'XLA', 'OMP_', 'MKL_')
_NOT_HEEDED = ('TF_CONFIG',)
_LAST_BYTES = 2000
# Held while a server is sought: of two that are alike, one would be let go, and
# what it has forked with it.
_SERVERS = threading.Lock()


class Forked:
  """A running program, with the part of `subprocess.Popen` that is needed.

  Attributes:
    pid: its process id, and its group's.
  """

  def __init__(self, status: int, timeout_secs: float) -> None:
    self._status = os.fdopen(status, 'rb', buffering=0)
    self._code: int | None = None
    pid = self._next(timeout_secs)
    if pid is None:
      raise errors.DeadlineError(
        f'No process was forked within {timeout_secs:g} seconds.'
      )
    self.pid = pid

  def poll(self) -> int | None:
    """The exit status, or minus the signal; None while it runs."""
    if self._code is None:
      try:
        self._code = self._next(0)
      except ConnectionError:  # with the server, what it has forked dies
        self._code = -signal.SIGKILL
    return self._code

  def wait(self, timeout: float | None = None) -> int:
    """Waits for the end; see `poll`.

    Raises:
      subprocess.TimeoutExpired: it still runs.
    """
    if self._code is None:
      select.select([self._status], [], [], timeout)
    code = self.poll()
    if code is None:
      assert timeout is not None
      raise subprocess.TimeoutExpired(str(self.pid), timeout)
    return code

  def send_signal(self, number: int) -> None:
    """Sends a signal, unless it has ended."""
    if self.poll() is None:
      os.kill(self.pid, number)

  def terminate(self) -> None:
    """Asks it to end."""
    self.send_signal(signal.SIGTERM)

  def _next(self, timeout_secs: float) -> int | None:
    """What the server has to say next, if it says it in time."""
    if not select.select([self._status], [], [], timeout_secs)[0]:
      return None
    said = self._status.read(fork_server.NUMBER.size)
    if not said:
      raise ConnectionError('The process that forks has ended.')
    return fork_server.NUMBER.unpack(said)[0]


def can_start(command: Sequence[str]) -> bool:
  """Whether a command is this Python with a program's file or a module."""
  return (
    len(command) > 1
    and command[0] == sys.executable
    and (command[1] == '-m' or command[1].endswith('.py'))
  )


def check_preload(modules: Sequence[str]) -> tuple[str, ...]:
  """The modules, if there are such; none is imported for that.

  Raises:
    ValueError: names the one that there is not.
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
  """Starts a command like `_processes.spawn`, if `can_start` says so.

  The first takes as long as importing TensorFlow does.

  Args:
    command: program and arguments.
    env: the child's whole environment.
    stdout: where its output goes, and its errors.
    preload: modules to have in place, besides `tensorflow`, which always is.
    timeout_secs: how long to wait for it to have a process id.

  Raises:
    ImportError: it cannot be had this way, for reasons that it gives.
    errors.DeadlineError: it did not come in time.
  """
  modules = tuple(module for module in preload if module != 'tensorflow')
  with _SERVERS:
    server = _server(modules, tuple(sorted(_heeded(env).items())))
  request = {'argv': command[1:], 'env': dict(env), 'cwd': os.getcwd()}
  try:
    return Forked(_ask(server, request, stdout), timeout_secs)
  except ConnectionError as error:
    raise ImportError(
      f'The process that imports {", ".join(preload) or "tensorflow"} has '
      f'ended. It wrote last:\n{server.last_words()}'
    ) from error


@dataclasses.dataclass(frozen=True)
class _Server:
  """A process that forks others, and ends when its connection is closed."""

  process: subprocess.Popen[bytes]
  connection: socket.socket
  log: IO[bytes]

  def last_words(self) -> str:
    """The end of what it has written."""
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


def _ask(server: _Server, request: Any, stdout: IO[bytes]) -> int:
  """Asks for a process; where to read what becomes of it."""
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


@functools.cache
def _server(
  preload: tuple[str, ...], env: tuple[tuple[str, str], ...]
) -> _Server:
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  others = {n: v for n, v in os.environ.items() if n not in _heeded(os.environ)}
  log = tempfile.TemporaryFile()  # noqa: SIM115
  with theirs:
    process = processes.spawn(
      [sys.executable, '-m', fork_server.__name__]
      + [str(theirs.fileno()), *preload],
      env={**others, **dict(env)},
      stdout=log,
      pass_fds=[theirs.fileno()],
    )
  return _Server(process, ours, log)
