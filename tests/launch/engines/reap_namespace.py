"""Kills all processes of a mount namespace once standard input ends.

`python reap_namespace.py PID`: PID is a process of the namespace. Another
process holds the other end of this one's input, which ends with that process.
"""

import contextlib
import os
import signal
import sys
import time

_PATIENCE_SECS = 20


def namespace(pid: int | str) -> str:
  """Returns a process' mount namespace; empty if the process has ended."""
  with contextlib.suppress(OSError):
    return os.readlink(f'/proc/{pid}/ns/mnt')
  return ''


def members(wanted: str) -> list[int]:
  """Returns the ids of the processes of a namespace, without zombies."""
  pids = filter(str.isdecimal, os.listdir('/proc'))
  return [int(pid) for pid in pids if namespace(pid) == wanted]


def main() -> None:
  wanted = namespace(int(sys.argv[1]))
  assert wanted not in ('', namespace('self'))
  sys.stdin.read()
  deadline = time.monotonic() + _PATIENCE_SECS
  while (pids := members(wanted)) and time.monotonic() < deadline:
    for pid in pids:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)


if __name__ == '__main__':
  main()
