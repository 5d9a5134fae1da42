"""Fencing: at most one process at a time acts as a task.

A process that was taken for dead may thaw, or be reachable again, after another
has been started in its place. Each server keeps, for each task, the number of
the eager context that the task's process has there. A new process closes the
context of its predecessor, whose operations there fail from then on. A process
that has lost its context checks for a successor before it opens another.

A job may have named memory on the servers, which outlives its processes. It is
deleted when a process of another job becomes the task, and on a server that
hosted a ps when that has gone home.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from absl import logging

from tfps import errors
from tfps._compat import eager_contexts
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import broadcast
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

_BOARD = 'tfps_fence_{}'


class Fence:
  """Exclusive right of a process to act as a task on servers.

  Args:
    task: of this process.
    servers: returns the current addresses of the servers.
    job: the container of the job's named memory, if there is one.
  """

  def __init__(
    self,
    task: spec_lib.Task,
    servers: Callable[[], Mapping[spec_lib.Task, str]],
    job: str = '',
  ) -> None:
    self._task = task
    self._servers = servers
    self._board = _BOARD.format(task)
    self._job = job
    self._number = 0

  def take(self, jobs: Mapping[str, Collection[int]] | None = None) -> None:
    """Takes the task over, after this process has connected to the servers.

    Servers that do not answer are logged.

    Args:
      jobs: job -> indices of the servers; by default all.
    """
    self._number = eager_contexts.own_id()
    addresses = _only(jobs, self._servers())
    call_secs = timeouts.current().call_secs

    def take_over(server: spec_lib.Task) -> None:
      address = addresses[server]
      with mailbox_lib.Mailbox(address) as mailbox:
        before = mailbox.read(self._board)
        mailbox.post(f'{self._number} {self._job}', self._board)
      number, job = _parse(before)
      if number not in (None, self._number):
        eager_contexts.close(address, number, timeout_secs=call_secs)
      if job not in ('', self._job):
        eager_contexts.empty(address, job, timeout_secs=call_secs)

    failures = broadcast.for_each(
      addresses, take_over, timeout_secs=timeouts.current().handshake_secs
    )
    if failures:
      logging.warning(
        'An earlier process of %s may still be connected: %s.',
        self._task,
        broadcast.format_failures(failures),
      )

  def free(self, addresses: Mapping[spec_lib.Task, str]) -> None:
    """Deletes the job's named memory on servers that it no longer uses.

    Failures are logged.

    Args:
      addresses: those of the servers.
    """
    if not self._job:
      return
    call_secs = timeouts.current().call_secs

    def empty(server: spec_lib.Task) -> None:
      address = addresses[server]
      eager_contexts.empty(address, self._job, timeout_secs=call_secs)

    failures = broadcast.for_each(addresses, empty, timeout_secs=call_secs)
    if failures:
      logging.warning(
        'Memory could not be freed where ps were hosted: %s.',
        broadcast.format_failures(failures),
      )

  def check(self, jobs: Mapping[str, Collection[int]] | None = None) -> None:
    """Checks that no other process has taken the task over.

    Servers that do not answer are ignored.

    Args:
      jobs: job -> indices of the servers; by default all.

    Raises:
      errors.ReplacedError: names the servers that know another process.
    """
    addresses = _only(jobs, self._servers())
    others = set()

    def look(server: spec_lib.Task) -> None:
      if health.is_alive(server, addresses[server]):
        with mailbox_lib.Mailbox(addresses[server]) as mailbox:
          number, _ = _parse(mailbox.read(self._board))
          if number not in (None, self._number):
            others.add(str(server))

    broadcast.for_each(
      addresses, look, timeout_secs=timeouts.current().call_secs
    )
    if others:
      raise errors.ReplacedError(
        f'{self._task} is another process by now, according to '
        f'{", ".join(sorted(others))}. This process was taken for dead '
        'and cannot change anything there: end it.'
      )


def _only(
  jobs: Mapping[str, Collection[int]] | None,
  addresses: Mapping[spec_lib.Task, str],
) -> Mapping[spec_lib.Task, str]:
  if jobs is None:
    return addresses
  return {
    t: at for t, at in addresses.items() if t.index in jobs.get(t.job, ())
  }


def _parse(notice: str | None) -> tuple[int | None, str]:
  """Returns the number of the context and the job that a server keeps."""
  number, _, job = (notice or '').partition(' ')
  return int(number) if number else None, job
