"""Waits until stopped processes no longer run."""

import contextlib
import pathlib
import time

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib

_STOPPED = frozenset('TtZX')  # states of threads that do not run


def wait(task: spec_lib.Task, pid: int) -> None:
  """Waits until all threads of a process have stopped after a SIGSTOP.

  On a busy machine some threads run on for a while after the signal.

  Args:
    task: the task, for the error.
    pid: its process id.

  Raises:
    errors.DeadlineError: some threads still run after the timeout.
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
  """Returns the states of a process' threads; none if it has ended."""
  states = set()
  for stat in pathlib.Path(f'/proc/{pid}/task').glob('*/stat'):
    with contextlib.suppress(OSError):  # the thread has ended
      states.add(stat.read_text().rpartition(')')[2].split()[0])
  return states
