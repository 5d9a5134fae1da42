"""Runs one task on another host by ssh, and ends with its status.

The task gets this process' environment, but for what belongs to a host or a
login and was not given for the tasks. SIGTERM is passed on, and the task's last
output comes back. If this process or the connection dies, the task is stopped
at its end, see `task`.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from typing import BinaryIO

from tfps._utils import die_with_parent
from tfps._utils import timeouts
from tfps.launch import task as task_lib

_SSH_FAILED = 255  # the status of ssh itself
_OPTIONS = (
  '-T',
  '-oBatchMode=yes',
  '-oConnectTimeout=10',
  '-oServerAliveInterval=5',
  '-oServerAliveCountMax=3',
)
# What belongs to a host or a login, and stays where it is.
_OWN = re.compile(
  'DISPLAY|HOME|HOSTNAME|LOGNAME|MAIL|OLDPWD|PWD|SHELL|SHLVL|TERM|TMP|TMPDIR|'
  'TZ|USER|WAYLAND_DISPLAY|XAUTHORITY|_|(BASH|DBUS|SSH|SYSTEMD|XDG)_.*'
)


def remote(
  ssh: Sequence[str],
  host: str,
  *,
  options: Sequence[str],
  env: Mapping[str, str],
) -> list[str]:
  """Returns the command that runs `tfps.launch.task` on a host.

  Args:
    ssh: the command ssh, with the user's options.
    host: the host, as ssh takes it.
    options: those of the module.
    env: this environment; its PYTHONPATH, if any, holds there, too.
  """
  path = env.get('PYTHONPATH')
  settings = ['env', f'PYTHONPATH={path}'] if path else []
  module = [sys.executable, '-m', 'tfps.launch.task', *options]
  words = ['exec', *map(shlex.quote, [*settings, *module])]
  return [*ssh, *_OPTIONS, host, ' '.join(words)]


def passed_on(env: Mapping[str, str], given: Collection[str]) -> dict[str, str]:
  """Returns the part of an environment that a task on another host gets.

  Args:
    env: the environment.
    given: names that are passed on, whatever they belong to.
  """
  return {
    name: value
    for name, value in env.items()
    if name in given or not _OWN.fullmatch(name)
  }


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a task on another host to its end.

  Args:
    argv: the command ssh, as a shell has it, the host, the seconds to exit
      after SIGTERM, the names of variables given for the tasks, as a shell has
      them, and the task's command; by default the command line's.

  Returns:
    The task's exit status; 255 if ssh failed or the connection was lost.
  """
  words = sys.argv[1:] if argv is None else argv
  ssh, host, grace_secs, given, *command = words
  options = ['--orders', '--silent_secs=0', f'--grace_secs={grace_secs}']
  env = passed_on(os.environ, shlex.split(given))
  order = task_lib.Order(tuple(command), env, os.getcwd())
  stopping = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stopping.set())
  process = subprocess.Popen(
    remote(shlex.split(ssh), host, options=options, env=os.environ),
    stdin=subprocess.PIPE,
    preexec_fn=functools.partial(_prepare, os.getpid()),
  )
  assert process.stdin is not None
  sender = threading.Thread(
    target=_send, args=(process.stdin, order, stopping), daemon=True
  )
  sender.start()
  status = process.wait()
  if status == _SSH_FAILED:
    print(f'tfps: the connection to {host} failed or was lost.', flush=True)
  return status if status >= 0 else 128 - status


def _prepare(parent_pid: int) -> None:
  """Prepares the process that becomes ssh."""
  # A launcher signals the whole group, and a scheduler all processes. ssh would
  # end at once, before the task that is told to; but it leaves ignored signals.
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  die_with_parent.tie(parent_pid)


def _send(
  task: BinaryIO, order: task_lib.Order, stopping: threading.Event
) -> None:
  """Sends the order, and signs of life until the task has to stop."""
  every_secs = timeouts.current().launcher_beat_secs
  try:
    _write(task, order.line())
    while not stopping.wait(every_secs):
      _write(task, b'\n')
    _write(task, b'stop\n')
  except BrokenPipeError:
    pass  # ssh has ended, and `main` returns its status.


def _write(task: BinaryIO, line: bytes) -> None:
  task.write(line)
  task.flush()


if __name__ == '__main__':
  sys.exit(main())
