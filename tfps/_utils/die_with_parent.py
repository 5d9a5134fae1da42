"""Runs a command that the kernel kills when the parent process ends.

Run as a file, so that neither this package nor TensorFlow is imported:
`python die_with_parent.py PARENT_PID COMMAND [ARGUMENT ...]`.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>; it survives execve
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main(parent_pid: int, command: list[str]) -> None:
  """Ties this process to its parent and becomes the command."""
  tie(parent_pid)
  become(command, os.environ)


def tie(parent_pid: int) -> None:
  """Makes the kernel kill this process when its parent ends."""
  ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent_pid:  # the parent died before the call above
    os._exit(128 + signal.SIGKILL)


def become(command: Sequence[str], env: Mapping[str, str]) -> None:
  """Becomes a command, to which signals do what they do by default.

  Python ignores some, and a program inherits that; see `restore_signals` of
  `subprocess`.

  Args:
    command: program and arguments.
    env: its environment.

  Raises:
    OSError: it cannot be run.
  """
  for number in _IGNORED_BY_PYTHON:
    signal.signal(number, signal.SIG_DFL)
  try:
    os.execvpe(command[0], list(command), env)
  except OSError:
    for number in _IGNORED_BY_PYTHON:
      signal.signal(number, signal.SIG_IGN)
    raise


if __name__ == '__main__':
  main(int(sys.argv[1]), sys.argv[2:])
