"""Knows when processes that were stopped do nothing any more."""

import contextlib
import pathlib
import time

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib

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
  secs = timeouts.current().thread_stop_secs
  deadline = time.monotonic() + secs
  while running := _thread_states(pid) - _STOPPED:
    if time.monotonic() > deadline:
      raise errors.DeadlineError(
        f'{task} was told to stop {secs:g} seconds ago, and has threads '
        f'in the states {", ".join(sorted(running))}, as /proc/{pid}/task says.'
      )
    time.sleep(timeouts.current().short_poll_secs)


def _thread_states(pid: int) -> set[str]:
  """Empty if there is no such process any more."""
  states = set()
  for stat in pathlib.Path(f'/proc/{pid}/task').glob('*/stat'):
    with contextlib.suppress(OSError):  # the thread has ended
      states.add(stat.read_text().rpartition(')')[2].split()[0])
  return states
