"""One process at a time is a task; who comes later takes its place.

A process that was taken for dead may thaw, or be in touch again, when another
has been started in its place. Each server knows, for each task, the number of
the context that the task's process has there. Who comes closes the context of
who was there before, whose operations there fail from then on. And who finds
that it has lost a context looks who has come, before it opens another.
"""

from collections.abc import Callable
from collections.abc import Mapping

from absl import logging

from tfps import _at_once
from tfps import _mailbox
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import probe
from tfps._compat import eager_contexts

_BOARD = 'tfps_lease_{}'
_CALL_SECS = 5.0
_ALL_SECS = 20.0


class Lease:
  """A process' right to work on servers as some task.

  Args:
    task: of this process.
    servers: where it works, with their addresses of the moment.
  """

  def __init__(
    self,
    task: cluster_lib.Task,
    servers: Callable[[], Mapping[cluster_lib.Task, str]],
  ) -> None:
    self._task = task
    self._servers = servers
    self._board = _BOARD.format(task)
    self._number: int | None = None

  def take(self) -> None:
    """Has this process be the task, once it is connected to the servers.

    Servers that do not answer are logged.
    """
    self._number = eager_contexts.own_id()
    addresses = self._servers()

    def take_over(server: cluster_lib.Task) -> None:
      with self._mailbox(server, addresses[server]) as mailbox:
        before = mailbox.read(self._board)
        mailbox.post(str(self._number), self._board)
      if before not in (None, str(self._number)):
        assert before is not None
        eager_contexts.close(
          addresses[server], int(before), timeout_secs=_CALL_SECS
        )

    failures = _at_once.for_each(addresses, take_over, timeout_secs=_ALL_SECS)
    if failures:
      logging.warning(
        'Where %s was before, it may still be: %s.',
        self._task,
        _at_once.say(failures),
      )

  def check(self) -> None:
    """Makes sure that nobody else has come.

    Servers that do not answer have no say.

    Raises:
      errors.ReplacedError: names the servers that know another process.
    """
    addresses = self._servers()
    others = set()

    def look(server: cluster_lib.Task) -> None:
      if probe.is_alive(server, addresses[server]):
        with self._mailbox(server, addresses[server]) as mailbox:
          if mailbox.read(self._board) not in (None, str(self._number)):
            others.add(str(server))

    _at_once.for_each(addresses, look, timeout_secs=_CALL_SECS)
    if others:
      raise errors.ReplacedError(
        f'{self._task} is another process by now, according to '
        f'{", ".join(sorted(others))}. This one had been taken for dead, and '
        'can change nothing there any more: end it.'
      )

  def _mailbox(
    self, server: cluster_lib.Task, address: str
  ) -> _mailbox.Mailbox:
    return _mailbox.Mailbox(server, address, timeout_secs=_CALL_SECS)
