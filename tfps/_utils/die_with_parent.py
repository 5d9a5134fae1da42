"""Runs a command that the kernel kills when the parent process ends.

Run as a file, so that neither this package nor TensorFlow is imported:
`python die_with_parent.py PARENT_PID COMMAND [ARGUMENT ...]`.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>; it survives execve


def main(parent_pid: int, command: list[str]) -> None:
  """Ties this process to its parent and becomes the command."""
  tie(parent_pid)
  os.execvp(command[0], command)


def tie(parent_pid: int) -> None:
  """Makes the kernel kill this process when its parent ends."""
  ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent_pid:  # the parent died before the call above
    os._exit(128 + signal.SIGKILL)


if __name__ == '__main__':
  main(int(sys.argv[1]), sys.argv[2:])
