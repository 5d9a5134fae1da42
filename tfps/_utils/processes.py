"""Child processes that end with this process, however it ends."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
from typing import IO
from typing import Protocol

_GUARD = pathlib.Path(__file__).with_name('die_with_parent.py')
_REAPER = pathlib.Path(__file__).with_name('reap_groups.py')
_END = 3000  # characters of a log


class Leader(subprocess.Popen[bytes]):
  """A process that leads a process group, which is killed when the leader ends.

  The group is killed before the leader is reaped: until then its number cannot
  belong to another group.
  """

  def poll(self) -> int | None:
    if self.returncode is None:
      self.has_ended(0)
    return super().poll()

  def wait(self, timeout: float | None = None) -> int:
    if self.returncode is None and not self.has_ended(timeout):
      assert timeout is not None
      raise subprocess.TimeoutExpired(self.args, timeout)
    return super().wait()

  def has_ended(self, timeout: float | None) -> bool:
    """Waits for the leader's end and kills its group, without reaping it.

    Args:
      timeout: in seconds; None waits without limit.

    Returns:
      Whether the leader has ended.
    """
    end = os.pidfd_open(self.pid)
    try:
      poll = select.poll()
      poll.register(end, select.POLLIN)
      has_ended = bool(poll.poll(None if timeout is None else 1000 * timeout))
    finally:
      os.close(end)
    if has_ended:
      kill_group(self.pid, signal.SIGKILL)
    return has_ended


def spawn(
  command: Sequence[str],
  *,
  env: Mapping[str, str],
  stdout: int | IO[bytes],
  stderr: int | IO[bytes] = subprocess.STDOUT,
  cwd: str | os.PathLike[str] | None = None,
  pass_fds: Collection[int] = (),
) -> Leader:
  """Starts a command in a session of its own, tied to this process' life.

  The child leads its process group, so that `os.killpg(child.pid, ...)`
  reaches what the child started, and a terminal's Ctrl-C does not reach it.
  Once the child has been reaped, that number may be another group's.

  Args:
    command: program and arguments.
    env: the child's whole environment.
    stdout: where its output goes, as for `subprocess.Popen`.
    stderr: as `stdout`; by default the same place.
    cwd: the child's working directory.
    pass_fds: file descriptors that it inherits.

  Returns:
    The child's process.
  """
  guarded = [sys.executable, '-I', '-S', str(_GUARD), str(os.getpid())]
  return (
    _spawner()
    .submit(
      Leader,
      [*guarded, *command],
      env=dict(env),
      cwd=cwd,
      stdin=subprocess.DEVNULL,
      stdout=stdout,
      stderr=stderr,
      start_new_session=True,
      pass_fds=pass_fds,
    )
    .result()
  )


@functools.cache
def _spawner() -> concurrent.futures.ThreadPoolExecutor:
  # The kernel sends the death signal when the *thread* that forked ends, so
  # every child is forked by one thread that lives as long as the process.
  return concurrent.futures.ThreadPoolExecutor(1, 'tfps-spawner')


def end_of_log(log: str) -> str:
  """Returns the end of a process' log, in which a crash says where it was.

  A process that crashes writes the names of all its extension modules last, in
  a line of many kilobytes.

  Args:
    log: what the process has written.
  """
  return re.sub('^Extension modules: .*\n?', '', log, flags=re.M)[-_END:]


class GroupReaper:
  """Kills process groups when this process ends, however it ends.

  `spawn` ties a child to this process' life; what the child has started is in
  the child's group, and would outlive both. A helper process therefore outlives
  this one for long enough to kill the groups. A context manager; leaving kills
  the groups that are left.
  """

  def __init__(self) -> None:
    self._reaper = subprocess.Popen(
      [sys.executable, '-I', '-S', str(_REAPER)],
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      text=True,
      bufsize=1,
      start_new_session=True,  # the terminal's Ctrl-C must not reach it
    )

  def add(self, group: int) -> None:
    """Registers a group to be killed."""
    self._send(f'+{group}\n')

  def remove(self, group: int) -> None:
    """Forgets a group that has ended, before its number is free again."""
    self._send(f'-{group}\n')

  def _send(self, line: str) -> None:
    assert self._reaper.stdin
    self._reaper.stdin.write(line)

  def __enter__(self) -> 'GroupReaper':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._reaper.communicate()


class GroupLeader(Protocol):
  """A process that leads a process group, such as a `subprocess.Popen`."""

  pid: int

  def poll(self) -> int | None:
    """Returns the exit status; None while the leader runs."""

  def wait(self) -> int:
    """Waits for the end of the leader; returns its exit status."""


def kill(leader: GroupLeader) -> None:
  """Kills a group and reaps its leader, unless the leader has ended already."""
  if leader.poll() is None:  # else its number may be another group's
    kill_group(leader.pid, signal.SIGKILL)
    leader.wait()


def kill_group(group: int, number: signal.Signals) -> None:
  """Sends a signal to a process group, which may have ended."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(group, number)
