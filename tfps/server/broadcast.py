"""Concurrent calls of a function for many tasks."""

from collections.abc import Callable
from collections.abc import Iterable
import concurrent.futures
import functools

from tfps import errors
from tfps._utils import threads
from tfps.cluster import spec as spec_lib


def for_each(
  tasks: Iterable[spec_lib.Task],
  call: Callable[[spec_lib.Task], object],
  *,
  timeout_secs: float,
) -> dict[spec_lib.Task, BaseException]:
  """Calls a function for every task, each in a thread.

  Args:
    tasks: to call it for.
    call: gets a task.
    timeout_secs: how long to wait for all calls together. Threads that are
      still running then are left behind.

  Returns:
    The errors, by task; a `DeadlineError` for calls that have not returned.
  """
  # Not an executor, which would join a thread that hangs.
  calls = {
    task: threads.begin(f'tfps-tell-{task}', functools.partial(call, task))
    for task in tasks
  }
  concurrent.futures.wait(calls.values(), timeout=timeout_secs)
  late = errors.DeadlineError(f'no answer in {timeout_secs:g} seconds')
  failures = {
    task: future.exception() if future.done() else late
    for task, future in calls.items()
  }
  return {task: error for task, error in failures.items() if error}


def format_failures(failures: dict[spec_lib.Task, BaseException]) -> str:
  """Returns the errors that `for_each` returned as text."""
  return '; '.join(f'{task}: {error}' for task, error in failures.items())
