"""Renewal of a task's credentials while its program runs."""

from collections.abc import Sequence
import os
import sys

from tfps.cluster import spec as spec_lib
from tfps.security import config
from tfps.security import proxy


class Renewal:
  """Gives the credentials of a task to its proxies again when files change.

  Connections that exist go on. Credentials that peers would refuse are not
  given to the proxies, which keep those that they have. What is refused, by
  the check or a proxy, is tried again at each look, until all take it.

  Args:
    security: the credentials, which have been checked.
    task: the task that they prove; None for one without a server.
  """

  def __init__(
    self, security: config.Security, task: spec_lib.Task | None
  ) -> None:
    self.security = security
    self._task = task
    self._seen: list[tuple[int, ...]] | None = self._states()
    self._refusal = ''  # as said last

  def renew(self, proxies: Sequence[proxy.Proxy]) -> None:
    """Looks whether a file has changed, and says what came of it.

    Args:
      proxies: of the task.
    """
    states = self._states()
    if states == self._seen:
      return
    # Credentials may become right while their files stay as they are: by
    # `chmod`, by time, or as a disk is back.
    self._seen = None
    try:
      self.security.check(self._task)
    except (ValueError, OSError) as error:
      self._refuse(
        f'credentials that have changed are not used: {error} Those of before '
        'are shown until they expire.'
      )
      return
    try:
      for each in proxies:
        each.renew(self.security)
    except (ValueError, OSError) as error:
      self._refuse(
        f'{self.security.cert} is not renewed everywhere: {error} This is '
        'tried again until it is.'
      )
      return
    self._seen = states
    self._refusal = ''
    _say(f'{self.security.cert} is renewed.')

  def _refuse(self, said: str) -> None:
    """Says why credentials are not used, once for each reason."""
    if said != self._refusal:
      self._refusal = said
      _say(said)

  def _states(self) -> list[tuple[int, ...]]:
    """Returns what changes with the files; nothing for one that is missing."""
    return [_state(getattr(self.security, name)) for name in config.VARIABLES]


def _say(said: str) -> None:
  print(f'tfps enclose: {said}', file=sys.stderr, flush=True)


def _state(path: str | os.PathLike[str]) -> tuple[int, ...]:
  try:
    found = os.stat(path)
  except OSError:
    return ()
  return found.st_ino, found.st_size, found.st_mtime_ns
