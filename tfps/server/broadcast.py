"""Concurrent calls of a function for many tasks."""

from collections.abc import Callable
from collections.abc import Iterable
import concurrent.futures
import threading

from tfps import errors
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
  calls = {task: _in_thread(call, task) for task in tasks}
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


def _in_thread(
  call: Callable[[spec_lib.Task], object], task: spec_lib.Task
) -> 'concurrent.futures.Future[None]':
  # Not an executor: it would join a thread that hangs, and it refuses work
  # while the interpreter ends.
  future: concurrent.futures.Future[None] = concurrent.futures.Future()

  def run() -> None:
    try:
      call(task)
    except Exception as error:
      future.set_exception(error)
    else:
      future.set_result(None)

  threading.Thread(target=run, name=f'tfps-tell-{task}', daemon=True).start()
  return future
