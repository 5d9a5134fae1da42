"""Dumps: text on what the tasks of a job do and wait for, with their stacks."""

from collections.abc import Mapping
import functools
import sys
import time

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import local_pool
from tfps.server import observation as observation_lib

Observed = Mapping[spec_lib.Task, observation_lib.Observation | str]


def text(observed: Observed) -> str:
  """Returns a dump.

  Args:
    observed: observations of tasks, or why there is none.
  """
  return '\n'.join(
    _of_task(task, found, _executed_by(task, observed))
    for task, found in observed.items()
  )


class Stalls:
  """Writes a dump when a deadline of training passes.

  A program that waits again after each deadline gets one dump a minute.
  """

  def __init__(self) -> None:
    self._next_at = 0.0

  def write(self, what: str, others: Mapping[spec_lib.Task, str]) -> None:
    """Writes what this process and other tasks do to stderr.

    Args:
      what: the call that took too long.
      others: addresses of the tasks that answer.
    """
    now = time.monotonic()
    if now < self._next_at:
      return
    self._next_at = now + timeouts.current().warn_every_secs
    own = observation_lib.of_process(has_stacks=True)
    own_task = spec_lib.Task.parse(own.task)
    # A session with a server of this process can crash it.
    elsewhere = {
      task: address
      for task, address in others.items()
      if task != own_task and not local_pool.is_here(address)
    }
    observed = observation_lib.observe_all(
      elsewhere, has_stacks=True, timeout_secs=timeouts.current().probe_secs
    )
    dump = text({own_task: own, **observed})
    print(
      f'tfps: {what} takes too long. Dump of all tasks that answer:\n{dump}',
      file=sys.stderr,
      flush=True,
    )


@functools.cache
def stalls() -> Stalls:
  """Returns the dumps of this process' deadlines."""
  return Stalls()


def _executed_by(task: spec_lib.Task, observed: Observed) -> list[str]:
  """Returns lines on what other tasks wait for a task to execute."""
  return [
    f'  {secs:.1f} s: {what} for {found.task}'
    for found in observed.values()
    if isinstance(found, observation_lib.Observation)
    for what, thread, secs in found.activities
    if thread == str(task)
  ]


def _of_task(
  task: spec_lib.Task,
  found: observation_lib.Observation | str,
  executed: list[str],
) -> str:
  if isinstance(found, str):
    return '\n'.join([f'{task} {found}', *executed]) + '\n'
  lines = [f'{task}, process {found.pid} on {found.host}']
  if found.last_event:
    lines.append(f'  last event: {found.last_event}')
  lines += [
    f'  {secs:.1f} s: {thread} {what}'
    for what, thread, secs in found.activities
  ]
  lines += executed
  lines += [f'  {line}' for line in found.stacks.splitlines()]
  return '\n'.join(lines) + '\n'
