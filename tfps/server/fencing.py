"""One process at a time is a task; who comes later takes its place.

A process that was taken for dead may thaw, or be in touch again, when another
has been started in its place. Each server knows, for each task, the number of
the context that the task's process has there. Who comes closes the context of
who was there before, whose operations there fail from then on. And who finds
that it has lost a context looks who has come, before it opens another.

A job may have memory under names on the servers, which outlives its processes
and is there for the next. Once a process of another job is the task, it goes.
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

_BOARD = 'tfps_lease_{}'


class Fence:
  """A process' right to work on servers as some task.

  Args:
    task: of this process.
    servers: where it works, with their addresses of the moment.
    job: the container of its named memory, if it has any of its own.
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
    """Has this process be the task, once it is connected to the servers.

    Servers that do not answer are logged.

    Args:
      jobs: which tasks, by their indices; by default all. They are alive.
    """
    self._number = eager_contexts.own_id()
    addresses = _only(jobs, self._servers())
    call_secs = timeouts.current().call_secs

    def take_over(server: spec_lib.Task) -> None:
      address = addresses[server]
      with self._mailbox(server, address) as mailbox:
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
        'Where %s was before, it may still be: %s.',
        self._task,
        broadcast.say(failures),
      )

  def check(self, jobs: Mapping[str, Collection[int]] | None = None) -> None:
    """Makes sure that nobody else has come.

    Servers that do not answer have no say.

    Args:
      jobs: which tasks to ask, by their indices; by default all.

    Raises:
      errors.ReplacedError: names the servers that know another process.
    """
    addresses = _only(jobs, self._servers())
    others = set()

    def look(server: spec_lib.Task) -> None:
      if health.is_alive(server, addresses[server]):
        with self._mailbox(server, addresses[server]) as mailbox:
          number, _ = _parse(mailbox.read(self._board))
          if number not in (None, self._number):
            others.add(str(server))

    broadcast.for_each(
      addresses, look, timeout_secs=timeouts.current().call_secs
    )
    if others:
      raise errors.ReplacedError(
        f'{self._task} is another process by now, according to '
        f'{", ".join(sorted(others))}. This one had been taken for dead, and '
        'can change nothing there any more: end it.'
      )

  def _mailbox(
    self, server: spec_lib.Task, address: str
  ) -> mailbox_lib.Mailbox:
    call_secs = timeouts.current().call_secs
    return mailbox_lib.Mailbox(server, address, timeout_secs=call_secs)


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
  """Whose context is there, and which job's memory."""
  number, _, job = (notice or '').partition(' ')
  return int(number) if number else None, job
