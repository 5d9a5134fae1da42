"""Child processes that end with this process, however it ends."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import functools
import os
import pathlib
import subprocess
import sys
from typing import IO

_GUARD = pathlib.Path(__file__).with_name('_die_with_parent.py')


def spawn(
  command: Sequence[str],
  *,
  env: Mapping[str, str],
  stdout: int | IO[bytes],
  stderr: int | IO[bytes] = subprocess.STDOUT,
  cwd: str | os.PathLike[str] | None = None,
  pass_fds: Collection[int] = (),
) -> subprocess.Popen[bytes]:
  """Starts a command in a session of its own, tied to this process' life.

  Its process group is led by the child, so that `os.killpg(child.pid, ...)`
  reaches what the child started, and a terminal's Ctrl-C does not reach it.

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
      subprocess.Popen,
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
