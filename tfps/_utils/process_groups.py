"""Process groups that end with this process, however it ends.

`_processes.spawn` ties each child to this process' life; what the child has
started itself is in its process group, and would go on.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from typing import Protocol

_ENDER = pathlib.Path(__file__).with_name('reap_groups.py')


class Groups:
  """A watcher that outlives this process long enough to kill its groups.

  A context manager; leaving kills the groups that are left.
  """

  def __init__(self) -> None:
    self._watcher = subprocess.Popen(
      [sys.executable, '-I', '-S', str(_ENDER)],
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      text=True,
      bufsize=1,
      start_new_session=True,  # the terminal's Ctrl-C must not reach it
    )

  def add(self, group: int) -> None:
    """Watches over a group."""
    self._tell(f'+{group}\n')

  def remove(self, group: int) -> None:
    """Forgets a group that has ended, before its number is free again."""
    self._tell(f'-{group}\n')

  def _tell(self, line: str) -> None:
    assert self._watcher.stdin
    self._watcher.stdin.write(line)

  def __enter__(self) -> 'Groups':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._watcher.communicate()


class Process(Protocol):
  """One that leads a group; `subprocess.Popen` has all of it."""

  pid: int

  def poll(self) -> int | None: ...
  def wait(self) -> int: ...


def end(leader: Process) -> None:
  """Kills a group, unless it has ended already with its leader."""
  if leader.poll() is None:  # else its number may be another group's
    kill_group(leader.pid, signal.SIGKILL)
    leader.wait()


def kill_group(group: int, number: signal.Signals) -> None:
  """Sends a signal to a process group, which may have ended."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(group, number)
