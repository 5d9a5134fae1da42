"""Child processes that end with this process, however it ends."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import functools
import os
import pathlib
import select
import signal
import subprocess
import sys
from typing import IO

from tfps._utils import process_groups

_GUARD = pathlib.Path(__file__).with_name('die_with_parent.py')


class Leader(subprocess.Popen[bytes]):
  """A process that leads a group, which ends when it does.

  Until the process is reaped, its number can be no other group's: that is when
  what it has left behind is killed.
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
    """Whether it ends in time; then the group does. It is not yet reaped."""
    end = os.pidfd_open(self.pid)
    try:
      poll = select.poll()
      poll.register(end, select.POLLIN)
      has_ended = bool(poll.poll(None if timeout is None else 1000 * timeout))
    finally:
      os.close(end)
    if has_ended:
      process_groups.kill_group(self.pid, signal.SIGKILL)
    return has_ended


def spawn(
  command: Sequence[str],
  *,
  env: Mapping[str, str],
  stdout: int | IO[bytes],
  stderr: int | IO[bytes] = subprocess.STDOUT,
  cwd: str | os.PathLike[str] | None = None,
  pass_fds: Collection[int] = (),
) -> 'Leader':
  """Starts a command in a session of its own, tied to this process' life.

  Its process group is led by the child, so that `os.killpg(child.pid, ...)`
  reaches what the child started, and a terminal's Ctrl-C does not reach it.
  Once the child has been seen to end, that number may be another group's.

  Args:
    command: program and arguments.
    env: the child's whole environment.
    stdout: where its output goes, as for `subprocess.Popen`.
    stderr: likewise; by default the same place.
    cwd: the child's working directory.
    pass_fds: file descriptors that it inherits.
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
