"""Knows when processes that were stopped do nothing any more."""

import contextlib
import pathlib
import time

from tfps import errors
from tfps.cluster import spec as spec_lib

_STOP_SECS = 10.0  # at most; it is a matter of milliseconds
_POLL_SECS = 0.001
_STOPPED = frozenset('TtZX')  # states of threads that do not run


def wait(task: spec_lib.Task, pid: int) -> None:
  """Returns once no thread of a process runs that was sent a SIGSTOP.

  On a busy machine some go on for a while after the signal.

  Args:
    task: that is the process.
    pid: of the process.

  Raises:
    errors.DeadlineError: some go on for too long.
  """
  deadline = time.monotonic() + _STOP_SECS
  while running := _thread_states(pid) - _STOPPED:
    if time.monotonic() > deadline:
      raise errors.DeadlineError(
        f'{task} was told to stop {_STOP_SECS:g} seconds ago, and has threads '
        f'in the states {", ".join(sorted(running))}, as /proc/{pid}/task says.'
      )
    time.sleep(_POLL_SECS)


def _thread_states(pid: int) -> set[str]:
  """Empty if there is no such process any more."""
  states = set()
  for stat in pathlib.Path(f'/proc/{pid}/task').glob('*/stat'):
    with contextlib.suppress(OSError):  # the thread has ended
      states.add(stat.read_text().rpartition(')')[2].split()[0])
  return states
