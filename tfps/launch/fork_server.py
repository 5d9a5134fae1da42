"""Process that imports TensorFlow once and forks Python programs.

Forked programs start without the seconds that the import takes, and share its
memory.

`python -m tfps.launch.fork_server SOCKET MODULE ...` imports the modules, too.
Each message on the inherited socket requests one program. It carries JSON with
`argv` (a program and its arguments, or -m, a module and its arguments), `env`
and `cwd`, and two file descriptors: one for the program's output, and one to
which its process id and, once it has ended, its exit status are written.
"""

from collections.abc import Sequence
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from typing import Any

from tfps._compat import lazy_keras
from tfps._utils import die_with_parent
from tfps._utils import processes

NUMBER = struct.Struct('<i')  # a process id, or an exit status
MAX_REQUEST = 1 << 18  # bytes

# What servers, and programs that train with Keras, import of this package.
_OWN = ('tfps.server.server',)
_OWN_WITH_KERAS = (
  *(*_OWN, 'tfps.keras', 'tfps.keras.client_functions'),
  *('tfps.strategies.between_graph', 'tfps.strategies.parameter_server'),
)


def main(connection: socket.socket, modules: Sequence[str]) -> None:
  """Serves requests until the connection is closed; a child runs its program.

  Args:
    connection: the socket from which requests are read.
    modules: modules to import before the first fork, besides `tensorflow` and
      modules of this package.
  """
  lazy_keras.import_tensorflow()
  own = _OWN_WITH_KERAS if 'keras' in modules else _OWN
  for module in (*modules, *own):
    importlib.import_module(module)
  gc.freeze()  # a collection in a child would copy shared pages
  request = _Server(connection).serve()
  if request is not None:
    _run(request['argv'])


class _Server:
  """Forks children and reports when they end."""

  def __init__(self, connection: socket.socket) -> None:
    self._connection = connection
    self._selector = selectors.DefaultSelector()
    self._selector.register(connection, selectors.EVENT_READ)

  def serve(self) -> dict[str, Any] | None:
    """Returns the request in a child, and None in the server when it ends."""
    while True:
      for key, _ in self._selector.select():
        if key.fileobj is not self._connection:
          self._reap(key.fd, *key.data)
          continue
        message, fds, _, _ = socket.recv_fds(self._connection, MAX_REQUEST, 2)
        if not message:
          return None
        request = json.loads(message)
        if self._fork(request, *fds):
          return request

  def _fork(self, request: dict[str, Any], output: int, status: int) -> bool:
    """Forks a process; returns True in the child."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
      os.close(status)
      self._close_server_fds()
      _become(server, output, request)
      return True
    _lead_group(pid)  # before its id is known to those who may kill the group
    os.close(output)
    _tell(status, pid)
    ended = os.pidfd_open(pid)
    self._selector.register(ended, selectors.EVENT_READ, (pid, status))
    return False

  def _reap(self, ended: int, pid: int, status: int) -> None:
    self._selector.unregister(ended)
    # Its number cannot be reused for another group before it is reaped.
    processes.kill_group(pid, signal.SIGKILL)  # orphans of the child
    _, code = os.waitpid(pid, 0)
    _tell(status, os.waitstatus_to_exitcode(code))
    os.close(status)
    os.close(ended)

  def _close_server_fds(self) -> None:
    """Closes the server's file descriptors in a child."""
    for key in list(self._selector.get_map().values()):
      os.close(key.fd)
      if key.data:
        os.close(key.data[1])
    self._connection.detach()
    self._selector.close()


def _become(server: int, output: int, request: dict[str, Any]) -> None:
  """Gives a child the group, output and environment of a separate process."""
  _lead_group(os.getpid())  # before it starts others
  die_with_parent.tie(server)
  os.dup2(output, 1)
  os.dup2(output, 2)
  os.close(output)
  os.environ.clear()
  os.environ.update(request['env'])
  os.chdir(request['cwd'])
  if 'numpy' in sys.modules:
    sys.modules['numpy'].random.seed()


def _lead_group(pid: int) -> None:
  """Makes a process a group leader; parent and child both try."""
  with contextlib.suppress(OSError):  # the child has called exec already
    os.setpgid(pid, pid)


def _tell(status: int, number: int) -> None:
  with contextlib.suppress(BrokenPipeError):  # the requester has ended
    os.write(status, NUMBER.pack(number))


def _run(argv: list[str]) -> None:
  if argv[0] == '-m':
    sys.argv = argv[1:]
    sys.path[0] = os.getcwd()
    runpy.run_module(argv[1], run_name='__main__', alter_sys=True)
  else:
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name='__main__')


if __name__ == '__main__':
  main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
